// Requests to the server, and its stream of events.

export class LoggedOut extends Error {}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) throw new LoggedOut(body.error);
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

export const get = async (path, signal) => answer(await fetch(path, { signal }));

export const post = async (path, fields = {}) =>
  answer(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(fields) }));

const RETRY_MS = 3000;

const listeners = new Set();
let source = null;

/** Call `listener` with each event until the returned function is called. */
export function onEvent(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Follow the server; `changed` gets "live", or "away" after each attempt that failed. */
export function follow(changed) {
  stop();
  const opened = new EventSource("/events");
  source = opened;
  opened.onopen = () => changed("live");
  opened.onerror = () => {
    changed("away");
    if (opened.readyState !== EventSource.CLOSED) return; // the browser tries again, but not after a refusal
    setTimeout(() => { if (source === opened) follow(changed); }, RETRY_MS);
  };
  opened.onmessage = (event) => {
    changed("live");
    const content = JSON.parse(event.data);
    for (const listener of [...listeners]) listener(content);
  };
}

export function stop() {
  source?.close();
  source = null;
}
