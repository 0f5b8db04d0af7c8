// The jobs, and the map of one.

import { get, onEvent } from "./api.js";
import { datasetLink, fill, h, hasWords, panel, say, searchHead, table, tiles } from "./dom.js";
import * as show from "./format.js";

const DENSE = 64;
const ROWS = 200;

const jobLink = (job) => h("a", { href: `#/jobs/${[job.dataset, job.job, job.id].map(encodeURIComponent).join("/")}`, "data-key": `${job.dataset}/${job.job}/${job.id}` }, job.job);

export function jobsTable(jobs, empty, hasDataset = true) {
  return table("Jobs", [
    { label: "Job", name: true, cell: jobLink },
    ...(hasDataset ? [{ label: "Dataset", name: true, cell: (row) => datasetLink(row.dataset) }] : []),
    { label: "Nodes", number: true, cell: (row) => show.count(row.nodes) },
    { label: "Suspected", number: true, cell: (row) => (row.suspected ? h("span", { class: "bad" }, show.count(row.suspected)) : "0") },
    { label: "Epoch", number: true, cell: (row) => (row.epoch === null ? "–" : `${show.count(row.epoch)}: ${show.share(row.share)}`) },
    { label: "Reads/s", number: true, cell: (row) => show.number(row.reads) },
    { label: "In time", number: true, wide: true, cell: (row) => show.share(row.hit_share) },
    { label: "Running", number: true, wide: true, cell: (row) => show.duration(row.age_s) },
    { label: "User", wide: true, cell: (row) => row.users.join(", ") || "–" },
    { label: "Memory", number: true, wide: true, cell: (row) => show.bytes(row.memory_bytes) },
    { label: "Generation", number: true, wide: true, cell: (row) => show.count(row.generation) },
  ], jobs, { empty });
}

export async function jobsView(main, { query, signal, setQuery }) {
  let { search = "" } = query;
  let jobs = [];
  const shown = h("div", { class: "panel" });
  const draw = () => {
    const found = jobs.filter((row) => hasWords(search, row.job, row.dataset));
    fill(shown, jobsTable(found, jobs.length ? "No job has this in its name or dataset." : "No job runs. A mount joins one with --job NAME; a new job is found within half a minute."));
    return found.length;
  };
  fill(main, searchHead("Jobs", "job or dataset", search, (text) => { search = text; setQuery({ search }); say(`${draw()} jobs`); }), shown);
  const load = async () => { ({ jobs } = await get("/api/jobs", signal)); draw(); };
  await load();
  let ticks = 0;
  const end = onEvent(() => { ticks += 1; if (ticks % 3 === 0) load().catch(() => {}); });
  signal.addEventListener("abort", end);
}

const state = (node) => (node.is_suspected ? `suspected: silent for ${show.duration(node.silent_s)}` : "alive");

function map(members) {
  const largest = Math.max(...members.map((node) => node.owned_share), 1e-9);
  return h("ol", { class: members.length > DENSE ? "map dense" : "map" }, members.map((node) => {
    const share = h("span", { class: "share" });
    share.style.width = `${100 * node.owned_share / largest}%`;
    return h("li", { class: node.is_suspected ? "late" : null, title: `${node.node}: ${state(node)}` },
      h("span", { class: "name" }, node.node),
      h("span", { class: "dim" }, `${show.bytes(node.memory_bytes)}, owns ${show.share(node.owned_share)}`),
      node.is_suspected ? h("span", { class: "bad" }, ` ${state(node)}`) : null,
      share);
  }));
}

const SPENT = { server: "servers", peer: "other nodes", disk: "the disk of the node", verification: "verification", push: "the page push" };

/** For what the threads of a node wait, as text. */
const waits = (told) => Object.entries(told.spent).map(([cause, spent]) => `${SPENT[cause] || cause} ${show.number(spent)}`).join(", ") || "nothing";

/** How far a node is, for what it waits, and what limits it. */
function epochs(members) {
  const told = members.filter((node) => node.told);
  if (!told.length) return h("p", { class: "empty" }, "No node has told its progress yet: a mount does so after half a minute, with a dieselfs of this version.");
  return [
    h("p", { class: "dim" }, "Of the mount that speaks for a node, at most a minute old. In time: planned files that were in memory when they were read. Waits for: seconds of all threads, for a second."),
    table("Epoch", [
      { label: "Node", cell: (row) => row.node },
      { label: "Epoch", number: true, cell: ({ told: one }) => (one.epoch < 0 ? "no plan" : show.count(one.epoch)) },
      { label: "Read", number: true, cell: ({ told: one }) => (one.positions ? show.share(one.position / one.positions) : "–") },
      { label: "Left", number: true, cell: ({ told: one }) => show.duration(one.left_s) },
      { label: "Reads/s", number: true, cell: ({ told: one }) => show.number(one.reads) },
      { label: "Fetched", number: true, wide: true, cell: ({ told: one }) => show.rate(one.fetched_bytes) },
      { label: "In time", number: true, wide: true, cell: ({ told: one }) => show.share(one.hit_share) },
      { label: "Waits for", text: true, wide: true, cell: ({ told: one }) => waits(one) },
      { label: "Limit", text: true, cell: ({ told: one }) => [h("b", {}, one.limit), ` ${one.text} `, h("span", { class: "dim" }, one.advice)] },
    ], told.slice(0, ROWS)),
  ];
}

export async function jobView(main, { parts: [dataset, job, id], signal }) {
  const shown = h("div", {});
  fill(main, h("p", { class: "path" }, h("a", { href: "#/jobs" }, "Jobs"), " / ", datasetLink(dataset), " /"), h("h1", { tabindex: "-1" }, job), shown);
  const load = async () => {
    const found = await get(`/api/jobs/${[dataset, job, id].map(encodeURIComponent).join("/")}`, signal);
    fill(shown,
      tiles(`Totals of job ${job}`, [
        ["Nodes", show.count(found.nodes)],
        ["Suspected", show.count(found.suspected), found.suspected ? "bad" : ""],
        ["Memory offered", show.bytes(found.memory_bytes)],
        ["Data in chunks", show.bytes(found.dataset_bytes)],
        ["Fits into memory", show.share(Math.min(found.memory_bytes / found.dataset_bytes, 1))],
        ["Generation", show.count(found.generation)],
        ["Epoch", found.epoch === null ? "–" : show.count(found.epoch)],
        ["Read by the slowest", show.share(found.share)],
        ["Reads", found.reads === null ? "–" : `${show.number(found.reads)}/s`],
        ["In time", show.share(found.hit_share)],
        ["Running", show.duration(found.age_s)],
        ["User", found.users.join(", ") || "–"],
      ]),
      panel("The epoch, and what limits it", epochs(found.members)),
      panel("Nodes, with the share of the chunks that each owns", map(found.members)),
      panel("Members", table("Members", [
        { label: "Node", cell: (row) => row.node },
        { label: "Rank", number: true, cell: (row) => show.count(row.rank) },
        { label: "State", cell: (row) => h("span", { class: row.is_suspected ? "bad" : "good" }, state(row)) },
        { label: "Memory", number: true, cell: (row) => show.bytes(row.memory_bytes) },
        { label: "Owns", number: true, cell: (row) => show.bytes(row.owned_bytes) },
        { label: "Share", number: true, wide: true, cell: (row) => show.share(row.owned_share) },
        { label: "Last renewal", number: true, wide: true, cell: (row) => `${show.duration(row.silent_s)} ago` },
        { label: "Address", wide: true, cell: (row) => (row.address ? h("code", {}, row.address) : "–") },
      ], found.members.slice(0, ROWS)),
      found.members.length > ROWS ? h("p", { class: "dim" }, `The first ${ROWS} of ${found.members.length} members.`) : null));
  };
  await load();
  const end = onEvent(() => load().catch(() => {}));
  signal.addEventListener("abort", end);
}
