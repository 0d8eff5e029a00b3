// The columns of the table, each declared here and nowhere else: label, text, order, metric, and width by layout.
// `row` is a `SummaryRow` (ledger/summary.py).
import { el } from "./dom.js";
import { endText, endTone, percent, rewardMark, rewardText, secondsText, versionRange, whole } from "./format.js";

/** The layouts of the table, for the whole page and beside an episode; style.css says which one is used when. */
const LAYOUTS = ["wide", "medium", "narrow", "side", "narrow-side"];

/**
 * `widths`: by layout, in the order of `LAYOUTS`; a column is hidden where it has none, and in narrower layouts.
 * `value`: what the table is ordered by, from small to large if `ascending`; a column without it has no order.
 * `metric`: the label under which the histogram offers the value. `cell`: a text, or the nodes of a cell; it also gets
 * the lowest and highest reward of the run.
 */
export const COLUMNS = [
  {
    key: "id", label: "episode", widths: ["minmax(120px, 1fr)", "minmax(90px, 1.1fr)", "minmax(0, 1fr)", "minmax(0, 1fr)", "minmax(0, 1fr)"],
    value: (row) => row.id, ascending: true, cell: (row) => row.id, title: (row) => row.id,
  },
  { key: "reward", label: "reward", widths: ["56px", "56px", "48px", "44px", "44px"], value: (row) => row.reward, metric: "reward", cell: (row, range) => [rewardMark(row.reward, range)] },
  {
    key: "end", label: "ended", widths: ["124px", "110px", "104px", "96px", "92px"], value: (row) => row.end_reason || "", ascending: true,
    cell: (row) => [el("b", { class: `dot tone-${endTone(row.end_reason)}` }), el("span", { text: endText(row.end_reason) })], title: (row) => row.failure || endText(row.end_reason),
  },
  { key: "turns", label: "turns", widths: ["44px", "48px", "", "34px"], value: (row) => row.turns, metric: "turns", cell: (row) => whole(row.turns) },
  { key: "tokens", label: "tokens", widths: ["64px", "68px", "52px", "48px"], value: (row) => row.tokens, metric: "tokens", cell: (row) => whole(row.tokens) },
  { key: "sampled", label: "sampled", widths: ["64px"], value: (row) => row.sampled_tokens, metric: "sampled tokens", cell: (row) => whole(row.sampled_tokens) },
  {
    key: "cached", label: "cached", widths: ["56px"], value: (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null), metric: "cached share",
    cell: (row) => percent(row.cached_tokens, row.prompt_tokens),
  },
  {
    key: "weights", label: "weights", widths: ["84px"], value: (row) => (row.versions.length ? String(row.versions[row.versions.length - 1]) : ""), ascending: true,
    cell: (row) => versionRange(row.versions),
  },
  { key: "branches", label: "branches", widths: ["64px"], value: (row) => row.branches || null, metric: "branches", cell: (row) => (row.branches ? whole(row.branches) : "–") },
  { key: "seconds", label: "time", widths: ["72px", "70px"], value: (row) => row.seconds || null, metric: "seconds", cell: (row) => (row.seconds ? secondsText(row.seconds) : "–") },
  { key: "prompt", label: "task and answer", widths: ["minmax(120px, 4fr)", "minmax(120px, 2fr)"], cell: askedAndSaid },
];

const BY_KEY = new Map(COLUMNS.map((column) => [column.key, column]));
const PART = "part:"; // before the name of a part of the reward, in the key of its column

/** The column of a key; null if there is none. Parts of the reward have columns of their own, whatever their names. */
export function columnOf(key) {
  if (BY_KEY.has(key)) return BY_KEY.get(key);
  if (!key || !key.startsWith(PART)) return null;
  const name = key.slice(PART.length);
  const value = (row) => (Object.hasOwn(row.parts, name) ? row.parts[name] : null);
  return { key, label: name, widths: ["64px"], value, metric: name, cell: (row) => rewardText(value(row)), title: (row) => `${name}: ${rewardText(value(row))}` };
}

export function partColumn(name) {
  return columnOf(PART + name);
}

/** The columns of a table, with some parts of the reward after the reward. */
export function columnsWith(parts) {
  const at = COLUMNS.findIndex(({ key }) => key === "reward") + 1;
  return [...COLUMNS.slice(0, at), ...parts.map(partColumn), ...COLUMNS.slice(at)];
}

/** The columns whose values the histogram can show. */
export function metricColumns(parts) {
  return columnsWith(parts).filter(({ metric }) => metric);
}

/** Set the grid of every layout on the table: `--columns-wide` and so on, which style.css reads. */
export function setGrids(table, columns) {
  LAYOUTS.forEach((layout, number) => table.style.setProperty(`--columns-${layout}`, columns.map(({ widths }) => widths[number] || "").join(" ")));
}

/** The classes of a column's cells: `col-KEY`, `num` for metrics, and `not-LAYOUT` where it is hidden. */
export function columnClass({ key, metric, widths }) {
  return [`col-${key.startsWith(PART) ? "part" : key}`, metric ? "num" : "", ...LAYOUTS.filter((_, number) => !widths[number]).map((layout) => `not-${layout}`)].filter(Boolean).join(" ");
}

function askedAndSaid(row) {
  const answer = row.failure || row.text;
  return [el("span", { class: "asked", text: oneLine(row.prompt) }), answer ? el("span", { class: row.failure ? "wrong" : "said", text: oneLine(answer) }) : null];
}

function oneLine(text) {
  return text.replace(/\s+/g, " ");
}
