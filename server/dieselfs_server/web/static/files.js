// The files of a dataset: folders, pictures, sound, and the beginning of text. The browser decodes; nothing is run.

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

/** The panel of one folder; `query`: its place. */
export async function filesPanel(dataset, query, signal) {
  const { folder = "", after = "" } = query;
  const found = await get(`/api/datasets/${encodeURIComponent(dataset)}/folder?${new URLSearchParams({ path: folder, after })}`, signal);
  if (found.is_encrypted) return panel("Files", h("p", { class: "empty" }, "This dataset is encrypted. The server has no key, so the page shows no names and no contents."));
  const looked = h("div", { "aria-live": "polite" });
  const look = async (entry) => {
    const address = dataAddress(dataset, entry.path);
    const save = h("a", { href: address, download: entry.name }, "Save the file");
    const shown = entry.kind === "audio"
      ? h("audio", { controls: true, src: address, preload: "metadata", "aria-label": entry.name })
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
  return panel("Files", trail(dataset, folder),
    pictures.length ? h("div", { class: "pictures" }, pictures.map((entry) => picture(dataset, entry))) : null,
    others.length || !pictures.length ? table("Files", [
      { label: "Name", name: true, cell: name },
      { label: "Size", number: true, cell: (row) => (row.kind === "folder" ? "–" : show.bytes(row.bytes)) },
      { label: "Modified", number: true, wide: true, cell: (row) => (row.modified_s ? show.when(row.modified_s) : "–") },
    ], others, { empty: "No file here." }) : null,
    after || found.next ? h("div", { class: "pages" }, after ? h("a", { href: place(dataset, folder) }, "First") : null, found.next ? h("a", { href: place(dataset, folder, found.next) }, "Next") : null) : null,
    looked);
}
