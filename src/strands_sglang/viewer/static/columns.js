// The columns of the table, each declared here and nowhere else: label, text, order, metric, and width by layout.
// `row` is a `SummaryRow` (ledger/summary.py).
import { el } from "./dom.js";
import { endText, endTone, percent, rewardText, secondsText, versionRange, whole } from "./format.js";

/** The layouts of the table, for the whole page and beside an episode; style.css says which one is used when. */
const LAYOUTS = ["wide", "medium", "narrow", "side", "narrow-side"];

/**
 * `widths`: by layout, in the order of `LAYOUTS`; a column is hidden where it has none, and in narrower layouts.
 * `value`: what the table is ordered by, from small to large if `ascending`; a column without it has no order.
 * `metric`: the label under which the histogram offers the value. `cell`: a text, or the nodes of a cell.
 */
export const COLUMNS = [
  {
    key: "id", label: "episode", widths: ["minmax(120px, 1fr)", "minmax(110px, 1.1fr)", "minmax(0, 1fr)", "minmax(0, 1fr)", "minmax(0, 1fr)"],
    value: (row) => row.id, ascending: true, cell: (row) => row.id, title: (row) => row.id,
  },
  { key: "reward", label: "reward", widths: ["56px", "56px", "48px", "44px", "44px"], value: (row) => row.reward, metric: "reward", cell: (row) => rewardText(row.reward) },
  {
    key: "end", label: "ended", widths: ["124px", "110px", "104px", "96px", "92px"], value: (row) => row.end_reason || "", ascending: true,
    cell: (row) => [el("b", { class: `dot tone-${endTone(row.end_reason)}` }), el("span", { text: endText(row.end_reason) })], title: (row) => row.failure || endText(row.end_reason),
  },
  { key: "turns", label: "turns", widths: ["44px", "48px", "", "34px"], value: (row) => row.turns, metric: "turns", cell: (row) => whole(row.turns) },
  { key: "tokens", label: "tokens", widths: ["64px", "68px", "52px", "48px"], value: (row) => row.tokens, metric: "tokens", cell: (row) => whole(row.tokens) },
  { key: "sampled", label: "sampled", widths: ["64px"], value: (row) => row.sampled_tokens, metric: "sampled tokens", cell: (row) => whole(row.sampled_tokens) },
  {
    key: "cached", label: "cached", widths: ["56px", "60px"], value: (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null), metric: "cached share",
    cell: (row) => percent(row.cached_tokens, row.prompt_tokens),
  },
  {
    key: "weights", label: "weights", widths: ["84px"], value: (row) => (row.versions.length ? String(row.versions[row.versions.length - 1]) : ""), ascending: true,
    cell: (row) => versionRange(row.versions),
  },
  { key: "branches", label: "branches", widths: ["64px"], value: (row) => row.branches || null, metric: "branches", cell: (row) => (row.branches ? whole(row.branches) : "–") },
  { key: "seconds", label: "time", widths: ["72px", "70px"], value: (row) => row.seconds || null, metric: "seconds", cell: (row) => (row.seconds ? secondsText(row.seconds) : "–") },
  { key: "prompt", label: "task and answer", widths: ["minmax(220px, 4fr)", "minmax(140px, 2fr)"], cell: askedAndSaid },
];

export const COLUMN = Object.fromEntries(COLUMNS.map((column) => [column.key, column]));

/** The values that the histogram can show: {label, value} by key. */
export const METRICS = Object.fromEntries(COLUMNS.filter(({ metric }) => metric).map(({ key, metric, value }) => [key, { label: metric, value }]));

/** Set the grid of every layout on the table: `--columns-wide` and so on, which style.css reads. */
export function setGrids(table) {
  LAYOUTS.forEach((layout, number) => table.style.setProperty(`--columns-${layout}`, COLUMNS.map(({ widths }) => widths[number] || "").join(" ")));
}

/** The classes of a column's cells: `col-KEY`, `num` for metrics, and `not-LAYOUT` where it is hidden. */
export function columnClass({ key, metric, widths }) {
  return [`col-${key}`, metric ? "num" : "", ...LAYOUTS.filter((_, number) => !widths[number]).map((layout) => `not-${layout}`)].filter(Boolean).join(" ");
}

function askedAndSaid(row) {
  const answer = row.failure || row.text;
  return [el("span", { class: "asked", text: oneLine(row.prompt) }), answer ? el("span", { class: row.failure ? "wrong" : "said", text: oneLine(answer) }) : null];
}

function oneLine(text) {
  return text.replace(/\s+/g, " ");
}
