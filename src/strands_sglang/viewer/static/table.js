// The table of episodes. Only the rows in view exist as elements, however many there are.
import { clear, el } from "./dom.js";
import { endText, endTone, percent, rewardText, secondsText, versionRange, whole } from "./format.js";

const ROW_HEIGHT = 32;
const FRAME_MILLISECONDS = 5;

const COLUMNS = [
  { key: "id", label: "episode", class: "col-id", cell: (row) => row.id, title: (row) => row.id },
  { key: "reward", label: "reward", class: "col-reward num", cell: (row) => rewardText(row.reward) },
  { key: "end", label: "ended", class: "col-end" },
  { key: "turns", label: "turns", class: "col-turns num", cell: (row) => whole(row.turns) },
  { key: "tokens", label: "tokens", class: "col-tokens num", cell: (row) => whole(row.tokens) },
  { key: "sampled", label: "sampled", class: "col-sampled num", cell: (row) => whole(row.sampled_tokens) },
  { key: "cached", label: "cached", class: "col-cached num", cell: (row) => percent(row.cached_tokens, row.prompt_tokens) },
  { key: "weights", label: "weights", class: "col-weights", cell: (row) => versionRange(row.versions) },
  { key: "branches", label: "branches", class: "col-branches num", cell: (row) => (row.branches ? whole(row.branches) : "–") },
  { key: "seconds", label: "time", class: "col-seconds num", cell: (row) => (row.seconds ? secondsText(row.seconds) : "–") },
  { key: "", label: "task and answer", class: "col-prompt" },
];

export class EpisodeTable {
  /** `open(id)` is called for a chosen row, `sortBy(key)` for a click on a column. */
  constructor({ open, sortBy }) {
    this.rows = [];
    this.selected = null;
    this.sort = { key: "", descending: false };
    this.open = open;
    this.head = el("div", { class: "table-head", role: "row" }, COLUMNS.map((column) => {
      const button = column.key
        ? el("button", { type: "button", text: column.label, on: { click: () => sortBy(column.key) } })
        : el("span", { text: column.label });
      return el("div", { class: column.class, role: "columnheader", data: { key: column.key } }, button);
    }));
    this.body = el("div", { class: "table-body", role: "rowgroup" });
    this.view = el("div", { class: "table-view", tabindex: "0", role: "presentation", on: { scroll: () => this.drawSoon() } }, this.body);
    this.node = el("div", { class: "table", role: "grid", "aria-label": "Episodes" }, this.head, this.view);
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
    if (column.key === "end") {
      return el("div", { class: column.class, role: "gridcell", title: row.failure || endText(row.end_reason) },
        el("b", { class: `dot tone-${endTone(row.end_reason)}` }), el("span", { text: endText(row.end_reason) }));
    }
    if (column.class === "col-prompt") {
      const answer = row.failure || row.text;
      return el("div", { class: column.class, role: "gridcell" }, el("span", { class: "asked", text: oneLine(row.prompt) }),
        answer ? el("span", { class: row.failure ? "wrong" : "said", text: oneLine(answer) }) : null);
    }
    return el("div", { class: column.class, role: "gridcell", title: column.title ? column.title(row) : null, text: column.cell(row) });
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

function oneLine(text) {
  return text.replace(/\s+/g, " ");
}
