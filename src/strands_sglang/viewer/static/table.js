// The table of episodes. Only the rows in view exist as elements, however many there are.
import { clear, el } from "./dom.js";
import { COLUMNS, columnClass, setGrids } from "./columns.js";

const ROW_HEIGHT = 32;
const FRAME_MILLISECONDS = 5;

const CLASSES = new Map(COLUMNS.map((column) => [column, columnClass(column)]));

export class EpisodeTable {
  /** `open(id)` is called for a chosen row, `sortBy(key)` for a click on a column. */
  constructor({ open, sortBy }) {
    this.rows = [];
    this.selected = null;
    this.sort = { key: "", descending: false };
    this.open = open;
    this.head = el("div", { class: "table-head", role: "row" }, COLUMNS.map((column) => {
      const button = column.value
        ? el("button", { type: "button", text: column.label, on: { click: () => sortBy(column.key) } })
        : el("span", { text: column.label });
      return el("div", { class: CLASSES.get(column), role: "columnheader", data: { key: column.key } }, button);
    }));
    this.body = el("div", { class: "table-body", role: "rowgroup" });
    this.view = el("div", { class: "table-view", tabindex: "0", role: "presentation", on: { scroll: () => this.drawSoon() } }, this.body);
    this.node = el("div", { class: "table", role: "grid", "aria-label": "Episodes" }, this.head, this.view);
    setGrids(this.node);
    this.drawn = new Map();
    this.frame = 0;
    new ResizeObserver(() => this.draw()).observe(this.view);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("[data-id]");
      if (row && !event.metaKey && !event.ctrlKey) {
        event.preventDefault();
        this.open(row.dataset.id);
      }
    });
  }

  update(rows, selected, sort) {
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
    if (!rows.length) this.body.append(el("p", { class: "empty", text: "No episode matches the filters." }));
    this.draw();
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
    const node = el("a", {
      class: `table-row${selected ? " selected" : ""}`, role: "row", data: { id: row.id }, "aria-rowindex": number + 1,
      "aria-selected": String(selected), href: `#e=${encodeURIComponent(row.id)}`, tabindex: "-1",
    }, COLUMNS.map((column) => this.cell(column, row)));
    node.style.top = `${number * ROW_HEIGHT}px`;
    return node;
  }

  cell(column, row) {
    const content = column.cell(row);
    const about = { class: CLASSES.get(column), role: "gridcell", title: column.title ? column.title(row) : null };
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
