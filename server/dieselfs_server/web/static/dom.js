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

/** Replace the content of an element, and keep the focus on what has the same `data-key`. */
export function fill(element, ...children) {
  const active = document.activeElement;
  const key = element.contains(active) ? active.closest("[data-key]")?.dataset.key : undefined;
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (key !== undefined) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** Let a screen reader say something. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/**
 * A table that scrolls sideways where it must. `columns`: label, `cell(row)`, and if wanted `number`, `wide` (left out
 * on narrow screens), `text` (may wrap), `sort` (the name to sort by). The first column names the row.
 */
export function table(caption, columns, rows, { sort = "", onSort = null, empty = "Nothing here." } = {}) {
  const kinds = (column) => [column.number && "number", column.wide && "wide", column.text && "text"].filter(Boolean).join(" ") || null;
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
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, header)), h("tbody", {}, body)));
}

function nextSort(column, sort) {
  if (sort === column.sort) return `-${column.sort}`;
  if (sort === `-${column.sort}`) return column.sort;
  return column.number ? `-${column.sort}` : column.sort;
}

/** A list of names and values. */
export function tiles(label, pairs) {
  return h("dl", { class: "panel tiles", "aria-label": label },
    pairs.map(([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind || null }, value))));
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, h("h2", {}, title), children);
}

/** To the page of a dataset. */
export const datasetLink = (name) => h("a", { href: `#/datasets/${encodeURIComponent(name)}`, "data-key": name }, name);
