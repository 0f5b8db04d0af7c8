// What failed lately.

import { get, onEvent } from "./api.js";
import { fill, h, hasWords, say, searchHead, table } from "./dom.js";
import * as show from "./format.js";

const result = (row) => row.outcome || row.level;

export function failuresTable(failures, isAdmin, empty = "Nothing failed since the server started.") {
  return table("Recent errors", [
    { label: "Time", cell: (row) => h("time", { title: show.when(row.time_s) }, show.moment(row.time_s)) },
    { label: "What", wide: true, cell: (row) => h("code", {}, row.what) },
    { label: "User", wide: true, cell: (row) => (isAdmin ? row.user || "–" : row.user) },
    { label: "Result", wide: true, cell: (row) => h("span", { class: row.level === "error" || row.outcome === "failed" ? "bad" : null }, result(row)) },
    { label: "Message", text: true, cell: (row) => [h("span", { class: "narrow dim" }, h("code", {}, row.what), ` ${row.user}: ${result(row)} `), row.text || row.outcome] },
  ], failures, { empty });
}

export async function failuresView(main, { me, query, signal, setQuery }) {
  let { search = "" } = query;
  let failures = [];
  let last = "";
  const shown = h("div", { class: "panel" });
  const draw = () => {
    const found = failures.filter((row) => hasWords(search, row.what, row.user, result(row), row.text));
    fill(shown, failuresTable(found, me.is_admin, search && failures.length ? "No error has this in it." : undefined));
    return found.length;
  };
  fill(main,
    searchHead("Errors", "call, user or message", search, (text) => { search = text; setQuery({ search }); say(`${draw()} errors`); }),
    h("p", { class: "dim" }, me.is_admin ? "Calls that failed or were refused, and warnings of the log: the newest 200 since the server started." : "Your calls that failed or were refused, since the server started."),
    shown);
  const load = async () => {
    ({ failures } = await get("/api/failures", signal));
    const newest = `${failures.length} ${failures[0]?.number}`;
    if (newest !== last) draw();
    last = newest;
  };
  await load();
  const end = onEvent(() => load().catch(() => {}));
  signal.addEventListener("abort", end);
}
