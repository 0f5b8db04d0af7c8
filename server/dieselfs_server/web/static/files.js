// The files of a dataset: folders, pictures, sound, video, and the beginning of text. The browser decodes; nothing is run.

import { get } from "./api.js";
import { fill, h, panel, say, table } from "./dom.js";
import * as show from "./format.js";

const TEXT_BYTES = 1024;
const PICTURE_BYTES_MAX = 4 * 1024 * 1024; // a larger one is drawn when somebody asks for it

const dataAddress = (dataset, path, first = 0) => `/data/${encodeURIComponent(dataset)}?${new URLSearchParams({ path, ...(first && { first }) })}`;

/** To a folder; `folder` and `after` are percent-encoded by the server. */
const place = (dataset, folder, after = "") => {
  const query = Object.entries({ folder, after }).filter(([, value]) => value);
  return `#/datasets/${encodeURIComponent(dataset)}${query.length ? `?${new URLSearchParams(query)}` : ""}`;
};

const named = (path) => { try { return decodeURIComponent(path); } catch { return path; } };

function trail(dataset, folder) {
  const parts = folder ? folder.split("/") : [];
  return h("p", { class: "path" }, h("a", { href: place(dataset, "") }, dataset),
    parts.map((part, depth) => [" / ", depth + 1 < parts.length ? h("a", { href: place(dataset, parts.slice(0, depth + 1).join("/")) }, named(part)) : named(part)]));
}

function picture(dataset, entry) {
  const frame = h("figure", { class: "picture" });
  const draw = () => {
    const image = h("img", { src: dataAddress(dataset, entry.path), alt: entry.name, loading: "lazy", decoding: "async", width: 120, height: 120 });
    image.addEventListener("error", () => image.replaceWith(h("span", { class: "dim" }, "not a picture that a browser can draw")));
    return image;
  };
  const waiting = h("button", { type: "button", on: { click: () => waiting.replaceWith(draw()) } }, `Draw ${entry.name}, ${show.bytes(entry.bytes)}`);
  fill(frame, entry.bytes <= PICTURE_BYTES_MAX ? draw() : waiting, h("figcaption", { title: entry.name }, entry.name));
  return frame;
}

/** The text in bytes, of which the last character may be cut; null if they are something else. */
function textOf(bytes) {
  for (let cut = 0; cut < Math.min(4, bytes.length + 1); cut += 1) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, bytes.length - cut));
      return text.includes("\0") ? null : text;
    } catch { /* one byte less */ }
  }
  return null;
}

async function readText(dataset, entry, signal) {
  const answer = await fetch(dataAddress(dataset, entry.path, TEXT_BYTES), { signal });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const text = textOf(new Uint8Array(await answer.arrayBuffer()));
  return text === null ? h("p", { class: "dim" }, "This is not text in UTF-8.") : h("pre", { tabindex: "0", role: "region", "aria-label": `Beginning of ${entry.name}` }, text);
}

/** Bars with their labels and values; the text makes the bars redundant for screen readers. */
function bars(rows, value, text) {
  const largest = Math.max(...rows.map(value), 1);
  return h("ol", { class: "bars" }, rows.map((row) => {
    const bar = h("span", {});
    bar.style.width = `${100 * value(row) / largest}%`;
    return h("li", {}, text(row), h("span", { class: "bar", "aria-hidden": "true" }, bar));
  }));
}

/** What opens when somebody asks for it, as it may cost a read of the whole list of files. */
function later(title, load) {
  const shown = h("div", {});
  const fails = (failure) => fill(shown, h("p", { class: "message", role: "alert" }, failure.message));
  const opened = h("details", { class: "panel", on: { toggle: () => { if (opened.open && !shown.childNodes.length) load(shown).catch(fails); } } }, h("summary", {}, title), shown);
  return opened;
}

async function showShape(dataset, folder, signal, shown) {
  const found = await get(`/api/datasets/${encodeURIComponent(dataset)}/shape?${new URLSearchParams({ path: folder })}`, signal);
  fill(shown,
    h("p", { class: "dim" }, `${show.count(found.files)} files, ${show.bytes(found.bytes)}, in ${show.count(found.folders)} folders; half of these have ${show.number(found.median_files)} files or more.`),
    found.classes.length ? [h("h3", {}, "Files of each folder"), bars(found.classes, (row) => row.files, (row) => [h("a", { href: place(dataset, row.path) }, row.name), ` ${show.count(row.files)} files, ${show.bytes(row.bytes)}`])] : null,
    found.omitted ? h("p", { class: "dim" }, `Those with most and with fewest files; ${show.count(found.omitted)} between them are left out.`) : null,
    found.sizes.length ? [h("h3", {}, "Sizes of files"), bars(found.sizes, (row) => row.files, (row) => `below ${show.bytes(row.below)}: ${show.count(row.files)}`)] : null);
}

const KINDS = [["added", "only in the second", "good"], ["removed", "only in the first", "bad"], ["changed", "with other content", "warn"]];

async function showChanges(dataset, signal, shown) {
  const { states } = await get(`/api/datasets/${encodeURIComponent(dataset)}/states`, signal);
  const choice = (label, first) => h("label", {}, `${label} `, h("select", {}, states.map((state) => h("option", { value: state, selected: state === first }, state)), h("option", { value: "", selected: first === "" }, "newest")));
  const [from, to] = [choice("From", states[0] ?? ""), choice("to", "")];
  const result = h("div", { "aria-live": "polite" });
  const compare = async () => {
    const asked = new URLSearchParams({ old: from.querySelector("select").value, new: to.querySelector("select").value });
    const found = await get(`/api/datasets/${encodeURIComponent(dataset)}/changes?${asked}`, signal);
    fill(result, h("p", {}, `${show.count(found.same)} files are the same.`), KINDS.map(([kind, text, colour]) => h("div", {},
      h("h3", { class: colour }, `${show.count(found[kind].files)} ${text}, ${show.bytes(found[kind].bytes)}`),
      found[kind].first.length ? h("ul", { class: "faults" }, found[kind].first.map((file) => h("li", {}, `${file.name}, ${show.bytes(file.bytes)}`))) : null,
      found[kind].files > found[kind].first.length ? h("p", { class: "dim" }, `The first ${found[kind].first.length}; dlcmd diff has all.`) : null)));
  };
  const fails = (failure) => fill(result, h("p", { class: "message", role: "alert" }, failure.message));
  fill(shown, h("form", { class: "tools", on: { submit: (event) => { event.preventDefault(); compare().catch(fails); } } }, from, to, h("button", {}, "Compare")), result);
}

/** The panels of one folder; `query`: its place. */
export async function filesPanels(dataset, query, signal) {
  const { folder = "", after = "" } = query;
  const found = await get(`/api/datasets/${encodeURIComponent(dataset)}/folder?${new URLSearchParams({ path: folder, after })}`, signal);
  if (found.is_encrypted) return panel("Files", h("p", { class: "empty" }, "This dataset is encrypted. The server has no key, so the page shows no names and no contents."));
  const looked = h("div", { "aria-live": "polite" });
  const look = async (entry) => {
    const address = dataAddress(dataset, entry.path);
    const save = h("a", { href: address, download: entry.name }, "Save the file");
    const shown = ["audio", "video"].includes(entry.kind)
      ? h(entry.kind, { controls: true, src: address, preload: "metadata", "aria-label": entry.name })
      : await readText(dataset, entry, signal).catch((failure) => h("p", { class: "message", role: "alert" }, failure.message));
    fill(looked, h("h3", {}, entry.name), shown, h("p", { class: "dim" }, entry.kind === "text" && entry.bytes > TEXT_BYTES ? `The first ${show.bytes(TEXT_BYTES)} of ${show.bytes(entry.bytes)}. ` : "", save));
    say(`Shows ${entry.name}`);
  };
  const name = (entry) => {
    if (entry.kind === "folder") return h("a", { href: place(dataset, entry.path) }, `${entry.name}/`);
    if (entry.kind === "link") return `${entry.name} → ${entry.target}`;
    return h("button", { type: "button", class: "plain", on: { click: () => look(entry) } }, entry.name);
  };
  const pictures = found.entries.filter((entry) => entry.kind === "image");
  const others = found.entries.filter((entry) => entry.kind !== "image");
  const files = panel("Files", trail(dataset, folder),
    pictures.length ? h("div", { class: "pictures" }, pictures.map((entry) => picture(dataset, entry))) : null,
    others.length || !pictures.length ? table("Files", [
      { label: "Name", name: true, cell: name },
      { label: "Size", number: true, cell: (row) => (row.kind === "folder" ? "–" : show.bytes(row.bytes)) },
      { label: "Modified", number: true, wide: true, cell: (row) => (row.modified_s ? show.when(row.modified_s) : "–") },
    ], others, { empty: "No file here." }) : null,
    after || found.next ? h("div", { class: "pages" }, after ? h("a", { href: place(dataset, folder) }, "First") : null, found.next ? h("a", { href: place(dataset, folder, found.next) }, "Next") : null) : null,
    looked);
  return [files, later("Classes and sizes", (shown) => showShape(dataset, folder, signal, shown)), later("What changed", (shown) => showChanges(dataset, signal, shown))];
}
