// What failed lately.

import { get, onEvent } from "./api.js";
import { fill, h, table } from "./dom.js";
import * as show from "./format.js";

export function failuresTable(failures, isAdmin) {
  return table("Recent errors", [
    { label: "Time", cell: (row) => h("time", { title: show.when(row.time_s) }, show.clock(row.time_s)) },
    { label: "What", cell: (row) => h("code", {}, row.what) },
    { label: "User", wide: true, cell: (row) => (isAdmin ? row.user || "–" : row.user) },
    { label: "Result", wide: true, cell: (row) => h("span", { class: row.level === "error" || row.outcome === "failed" ? "bad" : null }, row.outcome || row.level) },
    { label: "Message", text: true, cell: (row) => row.text || row.outcome },
  ], failures, { empty: "Nothing failed since the server started." });
}

export async function failuresView(main, { me, signal }) {
  const shown = h("div", { class: "panel" });
  fill(main, h("h1", { tabindex: "-1" }, "Errors"),
    h("p", { class: "dim" }, me.is_admin ? "Calls that failed or were refused, and warnings of the log: the newest 200 since the server started." : "Your calls that failed or were refused, since the server started."),
    shown);
  let last = "";
  const load = async () => {
    const { failures } = await get("/api/failures", signal);
    const newest = `${failures.length} ${failures[0]?.number}`;
    if (newest !== last) fill(shown, failuresTable(failures, me.is_admin));
    last = newest;
  };
  await load();
  const end = onEvent(() => load().catch(() => {}));
  signal.addEventListener("abort", end);
}
