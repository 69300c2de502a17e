// Tables whose rows stay the same elements while their values change, so that pointer and focus
// stay. Names come from clients: they are set as text, with invisible characters as numbers.
"use strict";

/** A text with control characters, and those that turn the direction of writing, made visible. */
function visible(text) {
  // Controls, and of the formats those that other text is not written with.
  return String(text).replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (character) => {
    const code = character.codePointAt(0).toString(16).padStart(4, "0");
    return `\\u${code}`;
  });
}

/**
 * A table. `columns`: `{key, label, kind, text, order, hot, button}`; `kind` as in `Format.as`, or
 * none for text; `text(row)` makes what is shown; `order` is what the server sorts by for this
 * column, all others are sorted here; `button(row)` makes an element once for each row.
 */
class SortTable {
  constructor(id, options) {
    const { columns, rowKey, onorder = null, sort = null, empty = "Nothing to show." } = options;
    this.columns = columns;
    this.rowKey = rowKey;
    this.onorder = onorder;
    this.sort = sort;
    this.order = null;
    this.data = [];
    this.rows = new Map();
    this.body = el("tbody");
    this.empty = el("p", { className: "empty", hidden: true }, empty);
    this.heads = columns.map((column) => this.#head(column));
    this.node = el("div", { className: "scroll", dataset: { testid: `table-${id}` } },
      el("table", { className: columns.length > 10 ? "wide" : "" },
        el("thead", {}, el("tr", {}, ...this.heads)), this.body), this.empty);
    this.#mark();
  }

  #head(column) {
    const className = column.kind ? "number" : "";
    if (column.button) return el("th", {}, column.label);
    return el("th", { className }, el("button", {
      type: "button", title: "Sort by this", onclick: () => this.#sortBy(column),
    }, column.label));
  }

  #sortBy(column) {
    if (column.order && this.onorder) {
      this.sort = null;
      this.onorder(column.order);
      return;
    }
    const again = this.sort?.key === column.key;
    const falling = again ? !this.sort.falling : Boolean(column.kind);
    this.sort = { key: column.key, falling };
    this.#mark();
    this.set(this.data);
  }

  /** What the server sorted by. */
  setOrder(order) {
    this.order = order;
    this.#mark();
  }

  #mark() {
    this.columns.forEach((column, at) => {
      const sorted = this.sort ? this.sort.key === column.key
        : Boolean(column.order) && column.order === this.order;
      const falling = this.sort ? this.sort.falling : true;
      if (sorted) this.heads[at].setAttribute("aria-sort", falling ? "descending" : "ascending");
      else this.heads[at].removeAttribute("aria-sort");
    });
  }

  #sorted(data) {
    if (!this.sort) return data;
    const { key, falling } = this.sort;
    const sign = falling ? -1 : 1;
    return [...data].sort((a, b) => {
      const [one, other] = [a[key] ?? "", b[key] ?? ""];
      if (typeof one === "number" && typeof other === "number") return sign * (one - other);
      return sign * String(one).localeCompare(String(other));
    });
  }

  set(data) {
    this.data = data;
    const old = this.rows;
    this.rows = new Map();
    const nodes = this.#sorted(data).map((row) => {
      const key = this.rowKey(row);
      const shown = old.get(key) ?? this.#row(row);
      this.rows.set(key, shown);
      this.#fill(shown, row);
      return shown.node;
    });
    const now = [...this.body.children];
    if (now.length !== nodes.length || nodes.some((node, at) => node !== now[at])) {
      this.body.replaceChildren(...nodes);
    }
    this.empty.hidden = nodes.length > 0;
  }

  #row(row) {
    const shown = { row };
    shown.cells = this.columns.map((column) => {
      const className = column.kind ? "number" : column.className ?? "";
      const cell = el("td", { className });
      if (column.button) cell.append(column.button(shown));
      return cell;
    });
    shown.node = el("tr", {}, ...shown.cells);
    return shown;
  }

  #fill(shown, row) {
    shown.row = row;
    this.columns.forEach((column, at) => {
      if (column.button) return;
      const value = row[column.key];
      const text = column.text ? column.text(row)
        : column.kind ? Format.as(column.kind, value) : visible(value ?? "–");
      const cell = shown.cells[at];
      if (cell.textContent !== text) cell.textContent = text;
      if (column.hot) {
        const hot = column.hot(row);
        cell.classList.toggle("hot", hot);
        if (hot) shown.node.classList.add("hot");
      }
    });
  }
}

/** A panel with a head. */
function panel(title, note, ...children) {
  return el("section", { className: "panel" },
    el("header", {}, el("h2", {}, title), note ? el("span", { className: "note" }, note) : null),
    ...children);
}
