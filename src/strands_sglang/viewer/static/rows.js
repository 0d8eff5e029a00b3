// The rows of the table: what is known, which are shown, in which order. No elements here.
import { columnOf } from "./columns.js";

/** A text that sorts as a reader expects: task-9 before task-10. */
export function sortable(text) {
  return text.replace(/\d+/g, (digits) => digits.padStart(15, "0"));
}

export class RowStore {
  constructor() {
    this.byId = new Map();
    this.version = 0;
    this.complete = false;
    this.filters = { q: "", end: "", weights: "", task: "", failed: "", metric: "reward", low: null, high: null };
    this.sort = { key: "", descending: false };
    this.matches = null; // ids that the full-text search found; null: no search
    this.searching = false;
    this.parts = []; // names of the parts of rewards, in alphabetical order: rows come in any
    this.range = [Infinity, -Infinity]; // the lowest and the highest reward
  }

  /** Take rows from the source; return whether anything changed. */
  merge({ version, complete, rows }) {
    const changed = rows.length > 0 || complete !== this.complete;
    for (const row of rows) {
      row.order = sortable(row.id);
      row.parts ||= {};
      const news = Object.keys(row.parts).filter((name) => !this.parts.includes(name));
      if (news.length) this.parts = [...this.parts, ...news].sort();
      if (row.reward !== null) this.range = [Math.min(this.range[0], row.reward), Math.max(this.range[1], row.reward)];
      row.folded = `${row.id}\n${row.prompt}\n${row.text}\n${row.failure || ""}\n${row.reward_error || ""}`.toLowerCase();
      this.byId.set(row.id, row);
    }
    this.version = version;
    this.complete = complete;
    return changed;
  }

  all() { return [...this.byId.values()]; }

  group(task) {
    return this.all().filter((row) => row.task_id === task).sort((one, other) => one.sample - other.sample);
  }

  /** The rows that pass the filters; `without` names one filter that is left out, for its own chart. */
  filtered(without) {
    const { q, end, weights, task, failed, metric, low, high } = this.filters;
    const wanted = q.trim().toLowerCase();
    const measure = columnOf(metric).value;
    const result = [];
    for (const row of this.byId.values()) {
      if (end && without !== "end" && (row.end_reason || "running") !== end) continue;
      if (weights && without !== "weights" && !row.versions.some((one) => String(one) === weights)) continue;
      if (task && row.task_id !== task) continue;
      if (failed && !isTroubled(row)) continue;
      if (low !== null && without !== "metric") {
        const value = measure(row);
        if (value === null || value < low || value > high) continue;
      }
      if (wanted && !row.folded.includes(wanted) && !(this.matches && this.matches.has(row.id))) continue;
      result.push(row);
    }
    return result;
  }

  shown() {
    const rows = this.filtered();
    const { key, descending } = this.sort;
    const value = columnOf(key) && columnOf(key).value;
    return inOrder(rows, key === "id" ? null : value, descending); // by task and sample, unless something else is chosen
  }

  get filterCount() {
    const { q, end, weights, task, failed, low } = this.filters;
    return [q.trim(), end, weights, task, failed].filter(Boolean).length + (low === null ? 0 : 1);
  }

  clearFilters() {
    Object.assign(this.filters, { q: "", end: "", weights: "", task: "", failed: "", low: null, high: null });
    this.matches = null;
  }
}

/** Sort rows by a value, those with the same in their `order`; what is missing comes last in both directions. */
export function inOrder(rows, value, descending, order = (row) => row.order) {
  const sign = descending ? -1 : 1;
  const byOrder = (one, other) => (order(one) < order(other) ? -1 : order(one) > order(other) ? 1 : 0);
  if (!value) return rows.sort((one, other) => sign * byOrder(one, other));
  return rows.sort((one, other) => {
    const left = value(one);
    const right = value(other);
    if (left === right) return byOrder(one, other);
    if (left === null || left === undefined) return 1;
    if (right === null || right === undefined) return -1;
    return sign * (left < right ? -1 : 1);
  });
}

export function isTroubled(row) {
  return Boolean(row.failure || row.reward_error) || row.failed_calls > 0 || row.tool_errors > 0;
}

/** Split values into bars of equal width: {low, high, count}. Few distinct values get one bar each. */
export function histogramBars(values, most = 24) {
  const known = values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));
  if (!known.length) return [];
  let low = Infinity;
  let high = -Infinity;
  for (const value of known) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const distinct = new Set(known);
  if (distinct.size <= 8) {
    const counts = new Map();
    for (const value of known) counts.set(value, (counts.get(value) || 0) + 1);
    return [...counts].sort((one, other) => one[0] - other[0]).map(([value, count]) => ({ low: value, high: value, count }));
  }
  const whole = known.every(Number.isInteger);
  const bars = whole ? Math.min(most, high - low + 1) : most;
  const width = whole ? Math.ceil((high - low + 1) / bars) : (high - low) / bars;
  const counts = new Array(bars).fill(0);
  for (const value of known) counts[Math.min(bars - 1, Math.floor((value - low) / width))]++;
  return counts.map((count, number) => {
    const start = low + number * width;
    return { low: start, high: whole ? start + width - 1 : number === bars - 1 ? high : start + width, count };
  });
}

/** Mean reward and number of episodes in steps of time: {start, end, mean, count, scored}. */
export function rewardOverTime(rows, steps = 48) {
  const ended = rows.filter((row) => row.end_time);
  if (ended.length < 2) return [];
  let first = Infinity;
  let last = -Infinity;
  for (const row of ended) {
    if (row.end_time < first) first = row.end_time;
    if (row.end_time > last) last = row.end_time;
  }
  const width = (last - first) / steps || 1;
  const result = Array.from({ length: steps }, (_, number) => (
    { start: first + number * width, end: first + (number + 1) * width, sum: 0, scored: 0, count: 0 }));
  for (const row of ended) {
    const step = result[Math.min(steps - 1, Math.floor((row.end_time - first) / width))];
    step.count++;
    if (row.reward !== null) {
      step.sum += row.reward;
      step.scored++;
    }
  }
  return result.map((step) => ({ ...step, mean: step.scored ? step.sum / step.scored : null }));
}

export function counted(rows, keys) {
  const counts = new Map();
  for (const row of rows) for (const key of keys(row)) counts.set(key, (counts.get(key) || 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}
