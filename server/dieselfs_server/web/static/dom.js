// Elements from data. Text stays text: nothing is parsed as HTML.

/** An element; `attributes` may have `class`, `on` (listeners by event) and any attribute. False ones are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace the content of an element; what has the same `data-key` keeps the focus, and how far it is scrolled. */
export function fill(element, ...children) {
  const active = document.activeElement;
  const key = element.contains(active) ? active.closest("[data-key]")?.dataset.key : undefined;
  const scrolled = [...element.querySelectorAll(".scroll")].filter((one) => one.scrollLeft).map((one) => [one.dataset.key, one.scrollLeft]);
  const keyed = (name) => element.querySelector(`[data-key="${CSS.escape(name)}"]`);
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  for (const [name, left] of scrolled) { const one = keyed(name); if (one) one.scrollLeft = left; }
  if (key !== undefined) keyed(key)?.focus({ preventScroll: true });
}

/** Let a screen reader say something. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/**
 * A table that scrolls sideways where it must. `columns`: label, `cell(row)`, and if wanted `number`, `wide` (left out
 * on narrow screens), `text` and `name` (may wrap), `sort` (the name to sort by). The first column names the row.
 */
export function table(caption, columns, rows, { sort = "", onSort = null, empty = "Nothing here." } = {}) {
  const kinds = (column) => [column.number && "number", column.wide && "wide", column.text && "text", column.name && "name"].filter(Boolean).join(" ") || null;
  const header = columns.map((column) => {
    const isSorted = column.sort && sort.replace("-", "") === column.sort;
    const label = column.sort && onSort
      ? h("button", { type: "button", "data-key": `sort-${column.sort}`, on: { click: () => onSort(nextSort(column, sort)) } }, column.label)
      : column.label;
    return h("th", { scope: "col", class: kinds(column), "aria-sort": isSorted ? (sort.startsWith("-") ? "descending" : "ascending") : null }, label);
  });
  const body = rows.map((row) => h("tr", {}, columns.map((column, place) =>
    h(place ? "td" : "th", { class: kinds(column), scope: place ? null : "row" }, column.cell(row) ?? "–"))));
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption, "data-key": `table-${caption}` },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, header)), h("tbody", {}, body)));
}

function nextSort(column, sort) {
  if (sort === column.sort) return `-${column.sort}`;
  if (sort === `-${column.sort}`) return column.sort;
  return column.number ? `-${column.sort}` : column.sort;
}

const ROW_TILES = 9;

/** A list of names and values. */
export function tiles(label, pairs) {
  return h("dl", { class: pairs.length > ROW_TILES ? "panel tiles many" : "panel tiles", "aria-label": label },
    pairs.map(([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind || null }, value))));
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, h("h2", {}, title), children);
}

const TYPING_MS = 150;

/** The heading of a page with a field for searching; `onSearch` gets its text once typing pauses. */
export function searchHead(title, placeholder, search, onSearch, ...tools) {
  const input = h("input", { type: "search", id: "search", value: search, placeholder, autocomplete: "off", spellcheck: "false" });
  let typing;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => onSearch(input.value.trim()), TYPING_MS);
  });
  return h("div", { class: "head" }, h("h1", { tabindex: "-1" }, title),
    h("form", { class: "tools", role: "search", on: { submit: (event) => event.preventDefault() } }, tools, h("label", { for: "search" }, "Search"), input));
}

/** Whether the texts together have all words of `search`, in any case. */
export function hasWords(search, ...texts) {
  const text = texts.join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** To the page of a dataset. */
export const datasetLink = (name) => h("a", { href: `#/datasets/${encodeURIComponent(name)}`, "data-key": name }, name);
