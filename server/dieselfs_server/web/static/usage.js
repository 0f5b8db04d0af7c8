// What users store and have read, and quotas.

import { get, onEvent } from "./api.js";
import { fill, h, panel, say, searchHead, table } from "./dom.js";
import * as show from "./format.js";

const TICKS = 5;
const NEARLY_FULL = 0.9;

/** What is used of a quota, as text and as a bar, which the text makes redundant for screen readers. */
function used({ used: value, limit, is_bytes: isBytes }) {
  const format = isBytes ? show.bytes : show.count;
  if (limit === null) return format(value);
  const share = limit ? value / limit : 1;
  const [state, kind] = share >= 1 ? ["full", "bad"] : share >= NEARLY_FULL ? ["nearly full", "warn"] : ["", ""];
  const bar = h("span", {});
  bar.style.width = `${100 * Math.min(share, 1)}%`;
  return [`${format(value)} of ${format(limit)}`, " ", h("span", { class: kind || "dim" }, [show.share(share), state].filter(Boolean).join(", ")),
    h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, bar)];
}

const limits = (label, usage) => usage.quotas.filter(({ limit }) => limit !== null).map((quota) => [`${label}${quota.label}`, quota]);

/** The quotas that limit what a dataset may store: its own, and that of its owner. Nothing without any. */
export function quotaPanel(usage, ownerUsage) {
  const found = [...limits("This dataset: ", usage), ...(ownerUsage ? limits(`All datasets of ${ownerUsage.name}: `, ownerUsage) : [])];
  if (!found.length) return null;
  return panel("Quotas", h("dl", { class: "quotas" }, found.map(([label, quota]) => h("div", {}, h("dt", {}, label), h("dd", {}, used(quota))))));
}

export async function usageView(main, { me, query, signal, setQuery }) {
  let { search = "" } = query;
  const totals = h("span", { class: "totals" });
  const shown = h("div", { class: "panel" });
  let last = "";
  const load = async () => {
    const found = await get(`/api/usage?${new URLSearchParams({ search })}`, signal);
    const text = JSON.stringify(found);
    if (text === last) return found;
    last = text;
    totals.textContent = found.rows.length < found.matching ? `the ${found.rows.length} of ${show.count(found.matching)} who store most` : `${show.count(found.matching)} of ${show.count(found.total)}`;
    fill(shown, table("Usage", [
      { label: "User", name: true, cell: (row) => row.name },
      ...found.quotas.map((label, column) => ({ label: label[0].toUpperCase() + label.slice(1), number: true, name: true, cell: (row) => used(row.quotas[column]) })),
      { label: "Read", number: true, wide: true, cell: (row) => show.bytes(row.read_bytes) },
      { label: "Written", number: true, wide: true, cell: (row) => show.bytes(row.written_bytes) },
    ], found.rows, { empty: search ? "No user has this in the name." : "No user owns a dataset, has a quota, or has read anything." }));
    return found;
  };
  const note = h("p", { class: "dim" }, "Chunks and files: of all datasets that a user owns, which count towards the quota. Read and written: what servers have sent to and received from the user, of all datasets.");
  if (me.is_admin) {
    fill(main, searchHead("Usage", "part of a user's name", search, (text) => {
      search = text;
      setQuery({ search });
      load().then((found) => say(`${found.matching} users`), () => {});
    }, totals), note, shown);
  } else fill(main, h("h1", { tabindex: "-1" }, "Usage"), note, shown);
  await load();
  let ticks = 0;
  const end = onEvent(() => { ticks += 1; if (ticks % TICKS === 0) load().catch(() => {}); });
  signal.addEventListener("abort", end);
}
