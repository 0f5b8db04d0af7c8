// What the server does now.

import { get, onEvent } from "./api.js";
import { Chart } from "./chart.js";
import { fill, h, panel, table, tiles } from "./dom.js";
import * as show from "./format.js";
import { failuresTable } from "./failures.js";

const SPANS = [["300", "5 minutes"], ["1800", "30 minutes"], ["86400", "24 hours"]];

function makeCharts() {
  return [
    new Chart("Throughput", show.rate, [{ key: "sent_bytes", label: "sent to clients" }, { key: "store_bytes", label: "read from the store" }, { key: "received_bytes", label: "received, when uploads end" }], { isBytes: true }),
    new Chart("Latency", show.latency, [{ key: "answer_s", label: "calls, mean" }, { key: "answer_p99_s", label: "calls, 99th percentile" }, { key: "store_s", label: "store, mean" }]),
    new Chart("Calls per second", show.number, [{ key: "calls", label: "answered" }, { key: "failed", label: "failed" }, { key: "busy", label: "store calls at once" }]),
    new Chart("Hit rates", show.share, [{ key: "mount_hit_share", label: "mounts here: files in time" }, { key: "shared_share", label: "ranges from another's read" }], { top: 1 }),
    new Chart("Mounts on this machine", show.rate, [{ key: "mount_bytes", label: "fetched" }], { isBytes: true }),
  ];
}

function localTable(daemons) {
  return table("Mounts and caches on this machine", [
    { label: "Dataset", cell: (row) => row.about.dataset || row.about.component },
    { label: "Place", cell: (row) => h("code", {}, row.about.mountpoint || row.about.job || "–"), wide: true, text: true },
    { label: "Fetched", cell: (row) => show.rate(row.fetched_bytes), number: true },
    { label: "Reads/s", cell: (row) => show.number(row.reads), number: true },
    { label: "Waiting", cell: (row) => show.number(row.waiting), number: true, wide: true },
    { label: "In time", cell: (row) => show.share(row.hit_share), number: true },
    { label: "Memory", cell: (row) => `${show.bytes(row.memory_used_bytes)} of ${show.bytes(row.memory_granted_bytes)}`, number: true },
    { label: "CPU", cell: (row) => show.number(row.cpu), number: true, wide: true },
    { label: "Plan", name: true, cell: (row) => row.plans.map((plan) => `epoch ${plan.epoch}: ${show.share(plan.positions ? plan.position / plan.positions : 0)}`).join(", ") || "–", wide: true },
    { label: "Suspects", cell: (row) => row.suspected.join(", ") || "–", wide: true },
  ], daemons, { empty: "No mount or cache daemon of the server's user runs on this machine." });
}

/** What a table of mounts says, for those who see it for the first time. */
const EXPLAINED = "Waiting: reads that wait, on the average. In time: planned files that were in memory when they were read. Plan: how far the slowest reader of an epoch is. Suspects: nodes of the job that do not answer this one.";

/** Whether all is well, and what is not: a line for each. */
function health({ checks, version, started_s: startedS }) {
  const faults = checks.filter((check) => check.state !== "ok");
  const isBad = faults.some((check) => check.state === "failure");
  const state = faults.length ? `${faults.length} of ${checks.length} checks ${faults.length > 1 ? "need" : "needs"} attention` : `All ${checks.length} checks are well`;
  return h("section", { class: "panel", "aria-label": "Health" },
    h("p", { class: "health" }, h("b", { class: isBad ? "bad" : faults.length ? "warn" : "good" }, state), h("span", { class: "dim" }, ` · version ${version}, up for ${show.duration(Date.now() / 1000 - startedS)}`)),
    faults.length ? h("ul", { class: "faults" }, faults.map((check) => h("li", {}, h("b", { class: check.state === "failure" ? "bad" : "warn" }, check.name), `: ${check.text}`, check.fix ? h("span", { class: "dim" }, ` → ${check.fix}`) : null))) : null,
    h("details", {}, h("summary", {}, "All checks"), h("ul", { class: "faults" }, checks.map((check) => h("li", {}, `${check.name}: ${check.text}`)))));
}

export async function nowView(main, { me, signal }) {
  const title = h("h1", { tabindex: "-1" }, "Now");
  let span = sessionStorage.getItem("span") || "300";
  let columns = { time: [] };
  const charts = makeCharts();
  const well = h("div", {});
  const figures = h("div", {});
  const local = h("div", {});
  const failed = h("div", {});
  const choice = h("select", { id: "span", on: { change: async (event) => { span = event.target.value; sessionStorage.setItem("span", span); await load(); } } },
    SPANS.map(([value, label]) => h("option", { value, selected: value === span }, label)));
  fill(main,
    h("div", { class: "head" }, title, h("div", { class: "tools" }, h("label", { for: "span" }, "Show the last"), choice)),
    well,
    figures,
    h("div", { class: "grid" }, charts.map((chart) => chart.element)),
    panel("On this machine", local, h("p", { class: "dim" }, EXPLAINED)),
    panel("Recent errors", failed));
  const draw = () => charts.forEach((chart) => {
    chart.element.hidden = chart.series.every((one) => one.key.startsWith("mount_")) && !columns.mount_bytes?.some((value) => value !== null);
    chart.element.classList.toggle("row", chart.element === charts.at(-1).element);
    chart.spanS = Number(span);
    chart.set(columns);
  });
  const load = async () => {
    columns = await get(`/api/live?span_s=${span}`, signal);
    draw();
  };
  const loadFailures = async () => fill(failed, failuresTable((await get("/api/failures", signal)).failures.slice(0, 8), true));
  let seen = "";
  const showEvent = (event) => {
    const { sample } = event;
    fill(figures, tiles("Figures of the last seconds", [
      ["Sent to clients", show.rate(sample.sent_bytes)],
      ["Read from the store", show.rate(sample.store_bytes)],
      ["Calls", `${show.number(sample.calls)}/s`],
      ["Mean answer", show.latency(sample.answer_s)],
      ["Failures", `${show.number(sample.failed)}/s`, sample.failed > 0 ? "bad" : ""],
      ["Connections", show.count(sample.connections)],
      ["Processors in use", show.number(sample.cpu)],
    ]));
    const rows = JSON.stringify(event.local);
    if (rows !== seen) fill(local, localTable(event.local));
    seen = rows;
  };
  fill(figures, tiles("Figures of the last seconds", ["Sent to clients", "Read from the store", "Calls", "Mean answer", "Failures", "Connections", "Processors in use"].map((name) => [name, "–"])));
  fill(local, localTable([]));
  const loadHealth = async () => {
    const found = await get("/api/health", signal);
    const isOpen = well.querySelector("details")?.open;
    fill(well, health({ ...found, ...me }));
    well.querySelector("details").open = Boolean(isOpen);
  };
  await Promise.all([load(), loadFailures(), loadHealth()]);
  let events = 0;
  const end = onEvent((event) => {
    if (!event.sample) return;
    events += 1;
    showEvent(event);
    if (span === "86400") { if (events % 30 === 0) load().catch(() => {}); }
    else {
      columns.time.push(event.time);
      for (const key of Object.keys(columns)) if (key !== "time") columns[key].push(event.sample[key] ?? null);
      while (columns.time.length && columns.time[0] <= event.time - Number(span)) for (const key of Object.keys(columns)) columns[key].shift();
      draw();
    }
    if (events % 5 === 0) loadFailures().catch(() => {});
    if (events % 30 === 0) loadHealth().catch(() => {});
  });
  signal.addEventListener("abort", () => { end(); charts.forEach((chart) => chart.close()); });
}
