// The table of episodes. Only the rows in view exist as elements, however many there are.
import { clear, el } from "./dom.js";
import { COLUMNS, columnClass, setGrids } from "./columns.js";

const ROW_HEIGHT = 32;
const FRAME_MILLISECONDS = 5;

export class EpisodeTable {
  /**
   * `open(id)` is called for a chosen row, `sortBy(key)` for a click on a column. Other tables than that of episodes have
   * `columns` of their own (with `widths` as in columns.js), a `label`, and `href(row)`, null if cells have links.
   */
  constructor({ open, sortBy, columns = COLUMNS, label = "Episodes", href = (row) => `#e=${encodeURIComponent(row.id)}`, none = "No episode matches the filters." }) {
    Object.assign(this, { href, none });
    this.rows = [];
    this.selected = null;
    this.sort = { key: "", descending: false };
    this.open = open;
    this.sortBy = sortBy;
    this.range = [0, 0];
    this.head = el("div", { class: "table-head", role: "row" });
    this.body = el("div", { class: "table-body", role: "rowgroup" });
    this.view = el("div", { class: "table-view", tabindex: "0", role: "presentation", on: { scroll: () => this.drawSoon() } }, this.body);
    this.node = el("div", { class: "table", role: "grid", "aria-label": label }, this.head, this.view);
    this.setColumns(columns);
    this.drawn = new Map();
    this.frame = 0;
    new ResizeObserver(() => this.draw()).observe(this.view);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("[data-id]");
      if (row && !event.metaKey && !event.ctrlKey && !event.target.closest(".own-link")) {
        event.preventDefault();
        this.open(row.dataset.id);
      }
    });
  }

  setColumns(columns) {
    const keys = columns.map(({ key }) => key).join("\n");
    if (keys === this.keys) return;
    Object.assign(this, { keys, columns, classes: new Map(columns.map((column) => [column, columnClass(column)])) });
    clear(this.head).append(...columns.map((column) => {
      const button = column.value
        ? el("button", { type: "button", text: column.label, title: column.label, on: { click: () => this.sortBy(column.key) } })
        : el("span", { text: column.label });
      return el("div", { class: this.classes.get(column), role: "columnheader", data: { key: column.key } }, button);
    }));
    setGrids(this.node, columns);
  }

  /** `range`: the lowest and the highest reward of the run. */
  update(rows, selected, sort, range = [0, 0]) {
    this.range = range;
    this.rows = rows;
    this.selected = selected;
    this.sort = sort;
    this.node.setAttribute("aria-rowcount", String(rows.length));
    for (const head of this.head.children) {
      const current = head.dataset.key && head.dataset.key === sort.key;
      head.classList.toggle("sorted", Boolean(current));
      head.setAttribute("aria-sort", current ? (sort.descending ? "descending" : "ascending") : "none");
    }
    this.body.style.height = `${rows.length * ROW_HEIGHT}px`;
    this.drawn.clear();
    clear(this.body);
    if (!rows.length) this.body.append(el("p", { class: "empty", text: this.none }));
    this.draw();
  }

  /** Show rows in a table that is no higher than they need. */
  fit(rows, sort) {
    this.node.style.maxHeight = `${Math.max(3, rows.length) * ROW_HEIGHT + 37}px`;
    this.update(rows, null, sort);
  }

  /** Draw the rows in view with the next frame, as often as the table is scrolled until then. */
  drawSoon() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(FRAME_MILLISECONDS);
    });
  }

  /** Draw the rows in view; what takes longer than `most` milliseconds is left to the next frame. */
  draw(most = Infinity) {
    const until = performance.now() + most;
    const top = this.view.scrollTop;
    const height = this.view.clientHeight || 600;
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - 4);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / ROW_HEIGHT) + 4);
    for (const [number, node] of this.drawn) {
      if (number < first || number >= last) {
        node.remove();
        this.drawn.delete(number);
      }
    }
    for (let number = first; number < last; number++) {
      if (!this.drawn.has(number)) {
        if (performance.now() > until) {
          this.drawSoon();
          return;
        }
        const node = this.rowNode(this.rows[number], number);
        this.drawn.set(number, node);
        this.body.append(node);
      }
    }
  }

  rowNode(row, number) {
    const selected = row.id === this.selected;
    const node = el(this.href ? "a" : "div", {
      class: `table-row${selected ? " selected" : ""}`, role: "row", data: { id: row.id }, "aria-rowindex": number + 1,
      "aria-selected": String(selected), href: this.href ? this.href(row) : null, tabindex: "-1",
    }, this.columns.map((column) => this.cell(column, row)));
    node.style.top = `${number * ROW_HEIGHT}px`;
    return node;
  }

  cell(column, row) {
    const content = column.cell(row, this.range);
    const about = { class: this.classes.get(column), role: "gridcell", title: column.title ? column.title(row) : null };
    return Array.isArray(content) ? el("div", about, content) : el("div", { ...about, text: content });
  }

  reveal(id) {
    const number = this.rows.findIndex((row) => row.id === id);
    if (number < 0) return;
    const top = number * ROW_HEIGHT;
    const { scrollTop, clientHeight } = this.view;
    if (top < scrollTop || top + ROW_HEIGHT > scrollTop + clientHeight) this.view.scrollTop = Math.max(0, top - clientHeight / 2);
    this.draw();
  }
}
