// The npm package oidc-provider, over HTTPS on this machine: a certified provider of OpenID Connect. Its argument is
// JSON: the folder `package`, files with `certificate` and `key`, the `host` as which it calls itself, a `port`,
// `clients`, and `people` (claims by the name that a person enters; any password is right). It prints its address. Each
// line of its standard input is JSON with changes: `redirects` of clients that have any, `rotate` for another key. It
// prints a line when they count. What it has issued stays.

import { generateKeyPairSync, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { createInterface } from "node:readline";

console.info = console.warn; // its notices are no answers
const given = JSON.parse(process.argv[2]);
const { default: Provider } = await import(`${given.package}/lib/index.js`);

const newKey = () => ({ ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }), kid: randomUUID(), use: "sig" });
let key = newKey();
let redirects = [];
let issuer;
let answer;

function begin() {
  const provider = new Provider(issuer, {
    claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
    clients: given.clients.map((client) => (client.grant_types.includes("authorization_code") ? { ...client, redirect_uris: redirects, response_types: redirects.length ? ["code"] : [] } : client)),
    conformIdTokenClaims: false, // as Keycloak and Dex, it puts the claims of all scopes into the ID token
    cookies: { keys: ["of a test"] },
    extraTokenClaims: (_, token) => ({ preferred_username: `service-account-${token.clientId}` }), // as Keycloak
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: (context) => (context.oidc.params.grant_type === "client_credentials" ? "urn:dieselfs" : undefined),
        getResourceServerInfo: () => ({ accessTokenFormat: "jwt", accessTokenTTL: 300, audience: "dieselfs", scope: "" }),
      },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: false },
    },
    findAccount: (_, id) => given.people[id] && { accountId: id, claims: () => ({ sub: id, ...given.people[id] }) },
    jwks: { keys: [key] },
    scopes: ["openid", "offline_access"],
  });
  answer = provider.callback();
}

const server = createServer({ cert: readFileSync(given.certificate), key: readFileSync(given.key) }, (...both) => answer(...both));
server.listen(Number(given.port), "127.0.0.1", () => {
  issuer = `https://${given.host}:${server.address().port}`;
  begin();
  console.log(issuer);
});
createInterface({ input: process.stdin }).on("line", (line) => {
  const changes = JSON.parse(line);
  if (changes.rotate) key = newKey();
  redirects = changes.redirects ?? redirects;
  begin();
  console.log("changed");
}).on("close", () => process.exit());
