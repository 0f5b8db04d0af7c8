// The pages, by the part of the address behind `#`. A one-time link is `#login=TOKEN`; the identity provider leads back
// to `?code=…&state=…`.

import { LoggedOut, follow, get, post, stop } from "./api.js";
import { datasetView, datasetsView } from "./datasets.js";
import { h, say } from "./dom.js";
import { failuresView } from "./failures.js";
import { jobView, jobsView } from "./jobs.js";
import { loginView, loginWithAnswer, loginWithLink } from "./login.js";
import { nowView } from "./now.js";
import { usageView } from "./usage.js";

const VIEWS = {
  "": [nowView, null, "Now"],
  datasets: [datasetsView, datasetView, "Datasets"],
  jobs: [jobsView, jobView, "Jobs"],
  usage: [usageView, null, "Usage"],
  errors: [failuresView, null, "Errors"],
};

const main = document.getElementById("main");
const top_ = document.getElementById("top");
const state = document.getElementById("state");

let me = null;
let leaving = new AbortController();
let isFirst = true;

const STATES = { live: () => "live", away: () => "reconnecting", silent: (seconds) => `no answer for ${Math.round(seconds)} s: what you see is old` };

function setState(name, seconds) {
  if (name === "away") get("/api/me").catch((failure) => { if (me && failure instanceof LoggedOut) logIn("Your session has ended."); });
  if (state.dataset.state === name && name !== "silent") return;
  if (state.dataset.state !== name) say(STATES[name](seconds));
  state.dataset.state = name;
  state.textContent = STATES[name](seconds);
}

function logIn(message = "") {
  stop();
  leaving.abort();
  me = null;
  top_.hidden = true;
  main.removeAttribute("aria-busy");
  document.title = "Log in – dieselfs";
  loginView(main, start, message);
}

/** The path behind `#`, its parts, and its query. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decodeURIComponent);
  return { view, parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (!me.is_admin && !place().view) history.replaceState(null, "", "#/datasets"); // the figures of the server are for administrators
  const { view, parts, query } = place();
  const [list, one, title] = VIEWS[view] || VIEWS[""];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${VIEWS[view] ? view : ""}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${parts.at(one === jobView ? 1 : 0) || title} – dieselfs`;
  const setQuery = (values) => {
    const kept = Object.entries(values).filter(([name, value]) => value && !(name === "page" && value === "0") && !(name === "sort" && value === "name"));
    history.replaceState(null, "", `#/${view}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`);
  };
  main.setAttribute("aria-busy", "true");
  main.dataset.place = location.hash;
  try {
    await (parts.length && one ? one : list)(main, { me, parts, query, signal, setQuery });
    if (!isFirst) main.querySelector("h1")?.focus();
    isFirst = false;
  } catch (failure) {
    if (signal.aborted) return;
    if (failure instanceof LoggedOut) logIn("Your session has ended: log in again.");
    else main.prepend(h("p", { class: "message", role: "alert" }, failure.message));
  } finally {
    if (!signal.aborted || !me) main.removeAttribute("aria-busy");
  }
}

async function start() {
  try {
    me = await get("/api/me");
  } catch (failure) {
    logIn(failure instanceof LoggedOut ? "" : failure.message);
    return;
  }
  top_.hidden = false;
  document.getElementById("user").textContent = me.user;
  document.querySelector('nav a[href="#/"]').hidden = !me.is_admin;
  follow(setState);
  await show();
}

document.getElementById("logout").addEventListener("click", async () => {
  await post("/api/logout").catch(() => {});
  logIn();
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { if (!takeLink() && me) show(); });

/** Log in with what the address has, a token or an answer, if it has any; it is removed from the address first. */
function takeLink() {
  const token = /^#login=([\w-]+)$/.exec(location.hash)?.[1], answer = new URLSearchParams(location.search);
  if (!token && !answer.has("state")) return false;
  history.replaceState(null, "", location.pathname + "#/");
  (token ? loginWithLink(token) : loginWithAnswer(answer)).then(start, (failure) => logIn(failure.message));
  return true;
}

if (!takeLink()) start();
