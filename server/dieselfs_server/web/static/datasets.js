// The datasets, and one of them.

import { get, onEvent } from "./api.js";
import { Chart } from "./chart.js";
import { datasetLink, fill, h, panel, say, searchHead, table, tiles } from "./dom.js";
import { filesPanels } from "./files.js";
import * as show from "./format.js";
import { jobsTable } from "./jobs.js";
import { quotaPanel } from "./usage.js";

const TICKS = 5;

const COLUMNS = [
  { label: "Name", sort: "name", name: true, cell: (row) => datasetLink(row.name) },
  { label: "Files", sort: "files", number: true, cell: (row) => show.count(row.files) },
  { label: "Size", sort: "size", number: true, cell: (row) => show.bytes(row.bytes) },
  { label: "Chunks", sort: "chunks", number: true, wide: true, cell: (row) => show.count(row.chunks) },
  { label: "Generation", sort: "generation", number: true, wide: true, cell: (row) => show.count(row.generation) },
  { label: "Owner", wide: true, cell: (row) => row.owner || "–" },
  { label: "Changed", sort: "updated", number: true, cell: (row) => (row.updated_s ? h("time", { title: show.when(row.updated_s) }, show.ago(row.updated_s)) : "never") },
];

export async function datasetsView(main, { query, signal, setQuery }) {
  let { search = "", sort = "name", page = "0" } = query;
  const shown = h("div", { class: "panel" });
  const totals = h("span", { class: "totals" });
  fill(main, searchHead("Datasets", "part of a name", search, (text) => { search = text; page = "0"; change(); }, totals), shown);
  let last = "";
  const load = async (isSaid = true) => {
    const found = await get(`/api/datasets?${new URLSearchParams({ search, sort, page })}`, signal);
    const text = JSON.stringify(found) + sort;
    if (text === last) return;
    last = text;
    page = String(found.page);
    totals.textContent = `${show.count(found.matching)} of ${show.count(found.total)}: ${show.count(found.files)} files, ${show.bytes(found.bytes)}`;
    fill(shown,
      table("Datasets", COLUMNS, found.rows, { sort, onSort: (next) => { sort = next; page = "0"; change(); }, empty: search ? "No dataset has this in its name." : "No dataset yet. Store one: dlcmd put -r FOLDER dl://NAME/" }),
      found.pages > 1 ? h("div", { class: "pages" },
        h("button", { type: "button", "data-key": "back", disabled: found.page === 0, on: { click: () => { page = String(found.page - 1); change(); } } }, "Back"),
        h("span", {}, `Page ${found.page + 1} of ${found.pages}`),
        h("button", { type: "button", "data-key": "next", disabled: found.page + 1 >= found.pages, on: { click: () => { page = String(found.page + 1); change(); } } }, "Next")) : null);
    if (isSaid) say(`${found.matching} datasets`);
  };
  const change = () => { setQuery({ search, sort, page }); load().catch(() => {}); };
  await load(false);
  let ticks = 0;
  const end = onEvent(() => { ticks += 1; if (ticks % TICKS === 0) load(false).catch(() => {}); });
  signal.addEventListener("abort", end);
}

export async function datasetView(main, { parts: [name], query, signal }) {
  const growth = new Chart("Growth: bytes of the chunks there are, by the time they were written", show.bytes, [{ key: "bytes", label: "data in chunks" }], { isBytes: true, isArea: true });
  signal.addEventListener("abort", () => growth.close());
  const title = h("h1", { tabindex: "-1" }, name);
  const facts = h("div", {});
  const lists = h("div", {});
  const files = h("div", {});
  fill(main, h("p", { class: "path" }, h("a", { href: "#/datasets" }, "Datasets"), " /"), title, facts, files, h("div", { class: "grid" }, growth.element), lists);
  let last = "";
  const load = async () => {
    const found = await get(`/api/datasets/${encodeURIComponent(name)}`, signal);
    const text = JSON.stringify(found);
    if (text === last) return;
    last = text;
    const { usage } = found;
    const readers = found.right === "read" ? "Your readers" : "Readers";
    fill(facts, tiles(`Totals of ${name}`, [
      ["Files", show.count(found.files)],
      ["Size", show.bytes(found.bytes)],
      ["Stored", show.bytes(usage.stored_bytes)],
      ["Chunks", show.count(found.chunks)],
      ["Dead entries", show.count(found.dead_entries)],
      ["Generation", show.count(found.generation)],
      ["Changed", found.updated_s ? show.ago(found.updated_s) : "never"],
      ["Read by all", show.bytes(usage.read_bytes)],
      ["Written by all", show.bytes(usage.written_bytes)],
      [`${readers} now`, show.count(found.reader_count)],
      ["Owner", usage.owner || "–"],
      ["Your right", found.right],
    ]), quotaPanel(usage, found.owner_usage));
    growth.set(found.growth);
    fill(lists,
      panel("Tags", table("Tags", [
        { label: "Tag", cell: (row) => (row.is_damaged ? `${row.name} (damaged)` : row.name) },
        { label: "Generation", number: true, cell: (row) => show.count(row.generation) },
        { label: "Files", number: true, cell: (row) => show.count(row.files) },
        { label: "Size", number: true, cell: (row) => show.bytes(row.bytes) },
        { label: "Of", number: true, wide: true, cell: (row) => (row.is_damaged ? "–" : show.when(row.updated_s)) },
      ], found.tags, { empty: `No tag. Keep this generation: dlcmd tag add dl://${name} NAME` })),
      panel("Jobs", jobsTable(found.jobs, "No job reads this dataset now.", false)),
      panel(`${readers} that hold a generation`, table("Readers", [
        { label: "User, node, process, place", name: true, cell: (row) => h("code", {}, row.holder) },
        { label: "Generation", number: true, cell: (row) => show.count(row.generation) },
        { label: "Lease", number: true, cell: (row) => show.duration(row.expires_in_s) },
      ], found.readers, { empty: "None." }),
      found.reader_count > found.readers.length ? h("p", { class: "dim" }, `The first ${found.readers.length} of ${found.reader_count} readers.`) : null));
  };
  await Promise.all([load(), filesPanels(name, query, signal).then((shown) => fill(files, shown))]);
  let ticks = 0;
  const end = onEvent(() => { ticks += 1; if (ticks % TICKS === 0) load().catch(() => {}); });
  signal.addEventListener("abort", end);
}
