// The run: figures, charts that filter, search, and the table.
import { clear, el, toast } from "./dom.js";
import { plural, whole } from "./format.js";
import { columnOf, columnsWith } from "./columns.js";
import { barRangeText, endChart, figures, histogramChart, rewardChart, weightsChart } from "./charts.js";
import { EpisodeTable } from "./table.js";

const SHORT_LISTS = 4; // lists of bars with so few entries together share a panel
const MOST_PARTS = 4; // of the reward that have a column
const PART_ROOM = 1110; // pixels that the other columns need

export class RunView {
  /** `changed()` is called when filters or order change, `open(id)` when an episode is chosen. */
  constructor(store, source, { changed, open, openGroup }) {
    this.store = store;
    this.source = source;
    this.changed = changed;
    this.openGroup = openGroup;
    this.search = null; // AbortController of a running search
    this.searchTimer = 0;
    this.table = new EpisodeTable({ open, sortBy: (key) => this.sortBy(key) });
    this.figures = el("div", {});
    this.charts = el("div", { class: "charts" });
    this.input = el("input", {
      type: "search", id: "search", placeholder: "Search tasks, messages, tool results …", "aria-label": "Search all conversations",
      autocomplete: "off", spellcheck: "false", on: { input: () => this.typed() },
    });
    this.chips = el("div", { class: "chips" });
    this.count = el("span", { class: "soft count", role: "status" });
    this.bar = el("div", { class: "filter-bar" }, this.input, this.chips, this.count);
    this.overview = el("div", { class: "overview" }, this.figures, this.charts);
    this.node = el("div", { class: "run" }, this.overview, this.bar, this.table.node);
    this.drawnCharts = "";
  }

  update(selected) {
    const { store } = this;
    const rows = store.shown();
    this.rows = rows;
    if (this.input.value !== store.filters.q) this.input.value = store.filters.q;
    const filters = store.filters;
    const key = `${store.version}/${JSON.stringify(filters)}/${store.matches ? store.matches.size : ""}`;
    if (key !== this.drawnCharts) {
      this.drawnCharts = key;
      clear(this.figures).append(figures(rows));
      const lists = [
        endChart(store.filtered("end"), filters, (end) => this.set({ end })),
        weightsChart(store.filtered("weights"), filters, (weights) => this.set({ weights })),
      ].filter(Boolean);
      const short = lists.reduce((sum, list) => sum + list.querySelectorAll(".bar-row").length, 0) <= SHORT_LISTS;
      clear(this.charts).append(
        rewardChart(rows),
        histogramChart(store.filtered("metric"), filters, store.parts, (low, high) => this.set({ low, high }), (metric) => this.set({ metric, low: null, high: null })),
        ...(short ? [el("div", { class: "panel-pair" }, lists)] : lists),
      );
    }
    this.drawChips();
    this.table.setColumns(columnsWith(store.parts.slice(0, Math.max(0, Math.min(MOST_PARTS, Math.floor((innerWidth - PART_ROOM) / 80))))));
    this.table.update(rows, selected, store.sort, store.range);
    const total = store.byId.size;
    const shown = rows.length === total ? plural(total, "episode") : `${whole(rows.length)} of ${plural(total, "episode")}`;
    this.count.textContent = shown + (store.searching ? ", searching …" : "") + (store.complete ? "" : ", reading …");
  }

  drawChips() {
    const { filters } = this.store;
    const chips = [];
    const chip = (label, change) => chips.push(el("button", { type: "button", class: "chip", title: "Remove this filter", text: label, on: { click: () => this.set(change) } }));
    if (filters.end) chip(`ended: ${filters.end.replaceAll("_", " ")}`, { end: "" });
    if (filters.low !== null) chip(`${columnOf(filters.metric).metric}: ${barRangeText(filters.metric, filters)}`, { low: null, high: null });
    if (filters.weights) chip(`weights: ${filters.weights}`, { weights: "" });
    if (filters.task) chip(`task: ${filters.task}`, { task: "" });
    chips.push(el("button", {
      type: "button", class: `chip toggle${filters.failed ? " on" : ""}`, "aria-pressed": String(Boolean(filters.failed)),
      text: "with errors", title: "Only episodes with a failure, a malformed call, or an error of a tool or the reward", on: { click: () => this.set({ failed: filters.failed ? "" : "1" }) },
    }));
    if (this.store.filterCount > 1) chips.push(el("button", { type: "button", class: "chip", text: "clear all", on: { click: () => { this.store.clearFilters(); this.changed(); } } }));
    clear(this.chips).append(...chips);
  }

  set(change) {
    Object.assign(this.store.filters, change);
    this.changed();
  }

  sortBy(key) {
    const { sort } = this.store;
    const descending = !columnOf(key).ascending;
    if (sort.key !== key) Object.assign(sort, { key, descending });
    else if (sort.descending === descending) sort.descending = !sort.descending;
    else Object.assign(sort, { key: "", descending: false });
    this.changed();
  }

  typed() {
    this.store.filters.q = this.input.value;
    clearTimeout(this.searchTimer);
    this.searchTimer = setTimeout(() => {
      this.fullText();
      this.changed();
    }, 150);
  }

  /** Search all conversations; rows whose own text matches are shown at once. */
  async fullText() {
    const query = this.store.filters.q.trim();
    if (this.search) this.search.abort();
    this.store.matches = null;
    this.store.searching = false;
    if (query.length < 2) return;
    const search = (this.search = new AbortController());
    const matches = (this.store.matches = new Set());
    this.store.searching = true;
    let drawn = 0;
    try {
      await this.source.search(query, (ids) => {
        for (const id of ids) matches.add(id);
        if (ids.length && performance.now() - drawn > 300) {
          drawn = performance.now();
          this.changed();
        }
      }, search.signal);
    } catch (error) {
      if (error.name !== "AbortError") toast(`search failed: ${error.message}`);
    }
    if (this.search === search) {
      this.store.searching = false;
      this.changed();
    }
  }
}
