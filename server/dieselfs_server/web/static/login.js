// The login: at the identity provider, with the proof of a key, which never leaves this page, or with a one-time link.

import { get, post } from "./api.js";
import { h } from "./dom.js";

const encoder = new TextEncoder();

const decode = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (character) => character.charCodeAt(0));
const encode = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_");
const xor = (a, b) => a.map((byte, place) => byte ^ b[place]);

async function hmac(key, message) {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, message));
}

/** Each part with its length before it (4 bytes, little-endian). */
function joined(parts) {
  const all = [];
  for (const part of parts) {
    const length = new Uint8Array(4);
    new DataView(length.buffer).setUint32(0, part.length, true);
    all.push(...length, ...part);
  }
  return new Uint8Array(all);
}

/** Log in with the line of a key file (docs/reference/rpc.md, "Authentication"). */
async function loginWithKey(line) {
  const match = /^\s*dieselfs-key (\S{1,69}) ([a-z0-9]{1,32}) ([A-Za-z0-9_=-]{44})(?: [A-Za-z0-9_=-]{44})?\s*$/.exec(line);
  if (!match) throw new Error("this is no key file: its line begins with dieselfs-key");
  if (!globalThis.crypto?.subtle) throw new Error("this browser computes no proofs without https: use a link of dlcmd dashboard");
  const [, user, keyId, secretText] = match;
  const secret = decode(secretText);
  const nonce = crypto.getRandomValues(new Uint8Array(32));
  const challenge = await post("/api/challenge", { user, key_id: keyId, client_nonce: encode(nonce) });
  const clientKey = await hmac(secret, encoder.encode("client"));
  const verifier = new Uint8Array(await crypto.subtle.digest("SHA-256", clientKey));
  const transcript = joined([
    ...["dieselfs handshake 2", "page", location.origin, user, keyId].map((text) => encoder.encode(text)),
    nonce,
    decode(challenge.server_nonce),
  ]);
  const proof = xor(clientKey, await hmac(verifier, transcript));
  const answer = await post("/api/login", { challenge: challenge.challenge, proof: encode(proof) });
  const expected = await hmac(await hmac(secret, encoder.encode("server")), transcript);
  if (answer.proof !== encode(expected)) throw new Error("this server does not know your key: it is not the real one");
}

export const loginWithLink = (token) => post("/api/link", { token });

/** With the query of the address to which the identity provider leads back. */
export const loginWithAnswer = (answer) =>
  post("/api/from_provider", Object.fromEntries(["state", "code", "iss", "error"].filter((name) => answer.has(name)).map((name) => [name, answer.get(name)])));

/** The button that leads to the identity provider; it shows itself if there is one. */
function providerButton(fail) {
  const leave = () => post("/api/to_provider").then(({ address }) => location.assign(address), fail);
  const button = h("button", { type: "button", class: "primary", hidden: true, on: { click: leave } });
  get("/api/provider").then(({ issuer }) => {
    button.hidden = !issuer;
    button.textContent = issuer && `Log in at ${new URL(issuer).host}`;
  }, fail);
  return button;
}

export function loginView(main, done, error = "") {
  const message = h("p", { class: "message", role: "alert", hidden: !error }, error);
  const file = h("input", { type: "file", id: "key-file" });
  const line = h("input", { type: "password", id: "key-line", autocomplete: "off", spellcheck: "false", placeholder: "dieselfs-key …" });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const fail = (failure) => {
    message.textContent = failure.message;
    message.hidden = false;
  };
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await loginWithKey(line.value || (file.files[0] ? await file.files[0].text() : ""));
      line.value = "";
      done();
    } catch (failure) {
      fail(failure);
      line.focus();
    } finally {
      button.disabled = false;
    }
  };
  main.replaceChildren(h("section", { class: "login panel", "aria-labelledby": "login-title" },
    h("h1", { id: "login-title", tabindex: "-1" }, "dieselfs"),
    message,
    providerButton(fail),
    h("p", {}, "Use the link that ", h("code", {}, "dlcmd dashboard"), " prints, or your key. The key stays in this browser: only a proof is sent."),
    h("form", { on: { submit } },
      h("label", { for: "key-file" }, "Key file"), file,
      h("label", { for: "key-line" }, "or its line"), line,
      button)));
}
