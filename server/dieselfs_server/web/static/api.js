// Requests to the server, and its stream of events.

export class LoggedOut extends Error {}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) throw new LoggedOut(body.error);
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

/** A request that a server does not answer for this long has failed. */
const ANSWER_MS = 40_000;
const within = (signal) => AbortSignal.any([AbortSignal.timeout(ANSWER_MS), ...(signal ? [signal] : [])]);

async function ask(path, options, signal) {
  try {
    return await fetch(path, { ...options, signal: within(signal) });
  } catch (failure) {
    throw failure.name === "TimeoutError" ? new Error(`the server has not answered for ${ANSWER_MS / 1000} s`) : failure;
  }
}

export const get = async (path, signal) => answer(await ask(path, {}, signal));

export const post = async (path, fields = {}) =>
  answer(await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(fields) }));

const RETRY_MS = 3000;
const SILENT_MS = 8000; // a server sends an event every 2 s

const listeners = new Set();
let source = null;
let listening;

/** Call `listener` with each event until the returned function is called. */
export function onEvent(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Follow the server; `changed` gets "live", "away" after each attempt that failed, and "silent" while nothing comes. */
export function follow(changed) {
  stop();
  const opened = new EventSource("/events");
  source = opened;
  let heardMs = Date.now();
  listening = setInterval(() => { if (Date.now() - heardMs > SILENT_MS && opened.readyState === EventSource.OPEN) changed("silent", (Date.now() - heardMs) / 1000); }, 1000);
  opened.onopen = () => { heardMs = Date.now(); changed("live"); };
  opened.onerror = () => {
    changed("away");
    if (opened.readyState !== EventSource.CLOSED) return; // the browser tries again, but not after a refusal
    setTimeout(() => { if (source === opened) follow(changed); }, RETRY_MS);
  };
  opened.onmessage = (event) => {
    heardMs = Date.now();
    changed("live");
    const content = JSON.parse(event.data);
    for (const listener of [...listeners]) listener(content);
  };
}

export function stop() {
  clearInterval(listening);
  source?.close();
  source = null;
}
