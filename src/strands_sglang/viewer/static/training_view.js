// A folder of runs: the curves of its trainings over steps or weight versions, and the list of runs.
import { clear, el } from "./dom.js";
import { brief, clockText, endText, endTone, plural, rewardText, secondsText, versionRange, whole } from "./format.js";
import { CrossHair, curveChart, endsChart } from "./curves.js";
import { inOrder, sortable } from "./rows.js";
import { EpisodeTable } from "./table.js";
import { meter } from "./task_view.js";

const SERIES_COLOURS = 8;
const ENDS = ["answered", "stopped"];
const SMOOTH_FROM = 80; // points of a training from which its curves are smoothed

const share = (value) => `${(100 * value).toFixed(value > 0 && value < 0.095 ? 1 : 0).replace(/\.0$/, "")} %`;
const few = (value) => (value >= 10000 ? brief(Math.round(value)) : value >= 100 ? whole(Math.round(value)) : Number(value.toFixed(2)).toString());
const spanText = (value) => (value < 100 ? `${Math.round(value)} s` : value < 6000 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`);
const seconds = (value) => (value ? secondsText(value) : "0");

/** Each chart: what it shows, and why one looks at it. `parts`: several values of one training, each with its own line. */
export const QUANTITIES = [
  { key: "reward", title: "Reward", about: "Mean reward, and the standard deviation over episodes", parts: [["reward", "", (point) => point.reward]], spread: (point) => point.std, format: rewardText, wide: true },
  { key: "passed", title: "Reward of at least 1", about: "Share of scored episodes", parts: [["passed", "", (point) => point.passed]], format: share, most: 1 },
  { key: "equal", title: "Groups without difference", about: "Share of groups in which all rewards are equal: they train nothing", parts: [["equal", "", (point) => point.equal]], format: share, most: 1 },
  { key: "turns", title: "Turns", about: "Mean turns of an episode", parts: [["turns", "", (point) => point.turns]], format: few },
  { key: "tokens", title: "Tokens", about: "Mean tokens of an episode: sampled, and all (dashed)", parts: [["sampled", "sampled", (point) => point.sampled], ["tokens", "all", (point) => point.tokens]], format: few },
  { key: "truncated", title: "Truncated", about: "Share of episodes that a limit ended", parts: [["truncated", "", (point) => point.truncated]], format: share, most: 1 },
  { key: "failed", title: "Failures", about: "Share of episodes that an engine, a tool or the agent's code ended", parts: [["failed", "", (point) => point.failed]], format: share, most: 1 },
  { key: "tools", title: "Tool errors", about: "Share of tool calls with an error, and malformed calls an episode (dashed)", parts: [["errors", "errors", (point) => point.tool_errors], ["malformed", "malformed", (point) => point.failed_calls]], format: share, most: 1 },
  { key: "age", title: "Age of tokens", about: "Mean number of weight versions between the oldest token of an episode and the newest of the step", parts: [["age", "", (point) => point.age]], format: few },
  { key: "cached", title: "Cached", about: "Share of the prompts' tokens that the engine had in its prefix cache", parts: [["cached", "", (point) => point.cached]], format: share, most: 1 },
  { key: "time", title: "Engine and tools", about: "Mean seconds of an episode: waiting for the engine, and for tools (dashed)", parts: [["engine", "engine", (point) => point.engine_seconds], ["tools", "tools", (point) => point.tool_seconds]], format: seconds },
];

const EVALUATION = " (eval)"; // after the name of a training or run: the evaluations within it
const isLoose = (name) => name === "" || name === EVALUATION; // runs that are no steps
const titleOf = (name) => (isLoose(name) ? `single runs${name}` : name);

export class TrainingView {
  /** `changed()`: the address changed; `open(run)` opens a run; `compare(a, b)` and `tasks(name)` open these pages. */
  constructor(actions) {
    Object.assign(this, actions, { by: "", hidden: null, query: "", sort: { key: "", descending: false }, smooth: "auto", chosen: [], data: null, verdicts: new Map() });
    this.hair = new CrossHair((point) => this.open(point.runs[point.runs.length - 1]));
    this.columns = runColumns(this);
    this.table = new EpisodeTable({
      open: (id) => this.open(id), sortBy: (key) => this.sortBy(key), columns: this.columns, label: "Runs", href: (row) => runAddress(row.id), none: "No run matches.",
    });
    this.table.body.addEventListener("click", (event) => this.picked(event), true);
    this.bar = el("div", { class: "series-bar" });
    this.figures = el("div", {});
    this.charts = el("div", { class: "curves" });
    this.input = el("input", { type: "search", id: "search", placeholder: "Search runs …", "aria-label": "Search runs", autocomplete: "off", spellcheck: "false", on: { input: () => { this.query = this.input.value; this.drawList(); } } });
    this.picks = el("div", { class: "chips" });
    this.count = el("span", { class: "soft count", role: "status" });
    this.node = el("section", { class: "training", "aria-label": "Training" }, this.bar, this.figures, this.charts, el("div", { class: "filter-bar" }, this.input, this.picks, this.count), this.table.node);
  }

  /** What the curves run over: steps, or weights. `by` says what was chosen, "": nothing. */
  get over() { return this.by || this.data.by; }

  /** Names of what has curves: trainings, their evaluations, and at last the runs that are no steps. */
  get trainings() {
    const rank = (name) => (isLoose(name) ? 2 : 0) + (name.endsWith(EVALUATION) ? 1 : 0);
    return Object.keys(this.data.curves).sort((one, other) => rank(one) - rank(other));
  }

  colour(name) { return `s${this.trainings.indexOf(name) % SERIES_COLOURS}`; }

  /** The trainings that are drawn. */
  get drawn() { return this.trainings.filter((name) => !this.isHidden(name)); }

  /** Runs that are no steps have no order: beside a training they are hidden until they are asked for. */
  isHidden(name) { return this.hidden === null ? isLoose(name) && !this.trainings.every(isLoose) : this.hidden.has(name); }

  update(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    this.drawBar();
    this.drawFigures();
    this.drawCharts();
    this.drawList();
  }

  set(change) {
    Object.assign(this, change);
    this.changed();
    this.draw();
  }

  drawBar() {
    const button = (on, text, title, run) => el("button", { type: "button", class: `quiet${on ? " on" : ""}`, "aria-pressed": String(on), text, title, on: { click: run } });
    const chips = this.trainings.map((name) => el("button", {
      type: "button", class: `series ${this.colour(name)}${this.isHidden(name) ? " off" : ""}`, "aria-pressed": String(!this.isHidden(name)), title: "Show or hide its curves; with Shift, this one alone",
      on: { click: (event) => this.toggle(name, event.shiftKey) },
    }, el("i", {}), el("span", { text: titleOf(name) }), el("span", { class: "soft", text: whole(this.data.curves[name].length) })));
    const { smooth } = this;
    clear(this.bar).append(el("div", { class: "chips" }, chips), el("span", { class: "grow" }),
      el("span", { class: "segments" }, button(this.over === "step", "steps", "A point for each step or run", () => this.set({ by: "step" })), button(this.over === "weights", "weights", "A point for each weight version", () => this.set({ by: "weights" }))),
      el("label", { class: "soft small" }, "mean of ", el("select", { class: "quiet", "aria-label": "Smoothing", on: { change: (event) => this.set({ smooth: event.target.value }) } },
        [["auto", "auto"], ["1", "1 step"], ["5", "5 steps"], ["15", "15 steps"], ["50", "50 steps"]].map(([value, text]) => el("option", { value, selected: value === smooth, text })))),
      el("button", { type: "button", class: "quiet", text: "by task", title: "Mean, spread, best and worst sample of each task (b)", on: { click: () => this.tasks(this.drawn[0] || this.trainings[0]) } }),
      this.data.runs.length > 1 ? el("button", { type: "button", class: "quiet", text: "compare", title: "Two runs or trainings on the same tasks (c)", on: { click: () => this.compare(this.drawn[0] || "", this.drawn[1] || "") } }) : null);
  }

  toggle(name, alone) {
    const hidden = new Set(this.trainings.filter((one) => (alone ? one !== name : this.isHidden(one))));
    if (!alone && !hidden.delete(name)) hidden.add(name);
    this.set({ hidden });
  }

  /** What the first of the drawn trainings came to. */
  drawFigures() {
    const name = this.drawn[0];
    const points = (this.data.curves[name] || []).filter((point) => point.reward !== null);
    clear(this.figures);
    if (!points.length) return;
    const last = points[points.length - 1];
    const best = points.reduce((one, other) => (other.reward > one.reward ? other : one));
    const sum = (key) => this.data.curves[name].reduce((total, point) => total + point[key], 0);
    const recent = points.slice(-10);
    const before = points.slice(-20, -10);
    const mean = (list) => list.reduce((total, point) => total + point.reward, 0) / list.length;
    const change = before.length ? mean(recent) - mean(before) : null;
    const equal = recent.filter((point) => point.equal !== null);
    const figure = (label, value, note, tone = "") => el("div", { class: "figure" }, el("b", { class: tone, text: value }), el("span", { text: label }), el("small", { text: note }));
    const span = last.to && points[0].from ? last.to - points[0].from : 0;
    const equalShare = equal.length ? equal.reduce((total, point) => total + point.equal, 0) / equal.length : null;
    this.figures.append(el("div", { class: "figures" },
      figure("reward now", rewardText(last.reward), this.drawn.length > 1 ? `${titleOf(name)}, ${last.label}` : last.label),
      figure("best", rewardText(best.reward), best.label),
      figure("last 10", change === null ? "–" : `${change < 0 ? "−" : "+"}${rewardText(Math.abs(change))}`, "against the 10 before", change === null ? "" : change < -0.02 ? "tone-text-bad" : change > 0.02 ? "tone-text-good" : ""),
      figure("train nothing", equalShare === null ? "–" : share(equalShare), "of the last groups", equalShare > 0.6 ? "tone-text-warn" : ""),
      figure("episodes", brief(sum("episodes")), plural(points.length, this.over === "weights" ? "weight version" : isLoose(name) ? "run" : "step")),
      figure("time", span ? spanText(span) : "–", last.to ? `until ${clockText(last.to).slice(0, 16)}` : "")));
  }

  drawCharts() {
    const { drawn } = this;
    const all = drawn.flatMap((name) => this.data.curves[name]);
    const least = all.reduce((low, point) => Math.min(low, point.x), Infinity);
    const most = all.reduce((high, point) => Math.max(high, point.x), -Infinity);
    clear(this.charts);
    if (!all.length) {
      this.charts.append(el("p", { class: "empty", text: this.data.complete ? "No episode has ended yet." : "Reading …" }));
      return;
    }
    this.hair.begin(least, most);
    const longest = Math.max(...drawn.map((name) => this.data.curves[name].length));
    const window = this.smooth === "auto" ? (longest < SMOOTH_FROM ? 1 : 2 * Math.round(longest / 80) + 1) : Number(this.smooth);
    const nodes = QUANTITIES.map((quantity) => {
      const lines = drawn.flatMap((name) => quantity.parts.map(([, part, value], number) => ({
        name: [drawn.length > 1 ? titleOf(name) : "", part].filter(Boolean).join(", ") || quantity.title, colour: this.colour(name), dashed: number > 0,
        points: this.data.curves[name].map((point) => ({ x: point.x, y: value(point), spread: quantity.spread && drawn.length === 1 ? quantity.spread(point) : 0, point })),
      })));
      return curveChart({ ...quantity, lines, window, hair: this.hair });
    });
    const first = this.data.curves[drawn[0]];
    nodes.splice(3, 0, this.kindsChart(first, window));
    nodes.splice(8, 0, endsChart({ title: drawn.length > 1 ? `How they ended: ${titleOf(drawn[0])}` : "How they ended", points: first, hair: this.hair, tone: (end) => (ENDS.includes(end) ? "good" : endTone(end)), text: endText }));
    nodes.push(this.driftChart(drawn, window));
    this.charts.append(...nodes, el("p", { class: "soft small span-line" }, el("span", { text: all.find((point) => point.x === least).label }), el("span", { text: all.find((point) => point.x === most).label })));
  }

  kindsChart(points, window) {
    const kinds = [...new Set(points.flatMap((point) => Object.keys(point.kinds)))].sort();
    const lines = kinds.map((kind, number) => ({ name: kind, colour: `s${(number + 1) % SERIES_COLOURS}`, points: points.map((point) => ({ x: point.x, y: point.kinds[kind] === undefined ? null : point.kinds[kind], point })) }));
    const chart = curveChart({ key: "kinds", title: "Reward by kind of task", about: "Tasks whose ids differ in their last number are of one kind", lines, format: rewardText, window, hair: this.hair });
    if (kinds.length) chart.append(el("div", { class: "curve-key" }, lines.map(({ name, colour }) => el("span", { class: `key ${colour}`, text: name }))));
    else chart.querySelector("p").textContent = "the ids of tasks do not name 2 to 8 kinds";
    return chart;
  }

  /** Drift is not recorded: it is measured on request, on one episode of each of some steps. */
  driftChart(drawn, window) {
    const lines = drawn.map((name) => ({ name: titleOf(name), colour: this.colour(name), points: this.data.curves[name].map((point) => ({ x: point.x, y: this.drifts.get(point.runs[0]) ?? null, point })) }));
    const button = el("button", { type: "button", class: "more", text: this.measuring || "measure", disabled: Boolean(this.measuring), title: "Encode the text of one episode again, for up to 24 steps of each training", on: { click: () => this.measureDrift() } });
    const chart = curveChart({ key: "drift", title: "Drift", about: "Share of the turns that a text-based trainer would train with other tokens, in one episode of some steps", lines, format: share, most: 1, window: 1, hair: this.hair, extra: button });
    const none = chart.querySelector("p");
    if (none) none.textContent = "measured on request: it needs the tokenizer";
    return chart;
  }

  async measureDrift() {
    const points = this.drawn.flatMap((name) => {
      const all = this.data.curves[name];
      return all.filter((_, number) => number % Math.max(1, Math.ceil(all.length / 24)) === 0 || number === all.length - 1);
    });
    for (const [number, point] of points.entries()) {
      this.measuring = `${number + 1} of ${points.length} …`;
      this.drawCharts();
      try {
        this.drifts.set(point.runs[0], await this.drift(point.runs[0]));
      } catch (error) {
        this.measuring = "";
        this.drawCharts();
        this.failed(error);
        return;
      }
    }
    this.measuring = "";
    this.drawCharts();
    if (points.every((point) => (this.drifts.get(point.runs[0]) ?? null) === null)) this.failed(new Error("drift needs the tokenizer: run.json does not name it, or it cannot be loaded"));
  }

  // --- the list ---

  drawList() {
    const { data, sort } = this;
    const words = this.query.trim().toLowerCase();
    const known = this.over === "step" ? this.drawn : null;
    const rows = data.runs.map((run) => ({ id: run.name, order: sortable(run.name), ...run, ...(run.figures || {}) }))
      .filter((row) => (!words || row.name.toLowerCase().includes(words)) && (!known || !this.trainings.includes(row.training) || known.includes(row.training) || row.training === ""));
    const column = this.columns.find((one) => one.key === sort.key);
    this.rows = column ? inOrder(rows, column.key === "name" ? null : column.value, sort.descending)
      : rows.sort((one, other) => (other.created || 0) - (one.created || 0));
    const scored = rows.filter((row) => row.scored);
    this.low = scored.reduce((low, row) => Math.min(low, row.reward), 0);
    this.high = scored.reduce((high, row) => Math.max(high, row.reward), 0);
    this.table.fit(this.rows, sort);
    const reading = data.runs.filter((run) => !run.figures && !run.error).length;
    this.count.textContent = (rows.length === data.runs.length ? plural(rows.length, "run") : `${whole(rows.length)} of ${plural(data.runs.length, "run")}`) + (reading ? `, ${whole(reading)} to read …` : "");
    const { chosen } = this;
    clear(this.picks).append(...chosen.map((name, number) => el("button", { type: "button", class: "chip", title: "Do not compare it", text: `${"AB"[number]}: ${name}`, on: { click: () => { this.chosen = chosen.filter((one) => one !== name); this.drawList(); } } })),
      ...(chosen.length === 1 ? [el("span", { class: "soft small", text: "choose another to compare" })] : []));
  }

  picked(event) {
    const box = event.target.closest("[data-pick]");
    if (!box) return;
    event.preventDefault();
    event.stopPropagation();
    const name = box.dataset.pick;
    this.chosen = this.chosen.includes(name) ? this.chosen.filter((one) => one !== name) : [...this.chosen, name].slice(-2);
    if (this.chosen.length === 2) {
      const [a, b] = this.chosen;
      this.chosen = [];
      this.compare(a, b);
    } else this.drawList();
  }

  sortBy(key) {
    const descending = !this.columns.find((column) => column.key === key).ascending;
    if (this.sort.key !== key) this.sort = { key, descending };
    else if (this.sort.descending === descending) this.sort.descending = !descending;
    else this.sort = { key: "", descending: false };
    this.set({});
  }
}

export function runAddress(name) { return `/run/${encodeURIComponent(name)}/`; }

function runColumns(view) {
  const number = (key, label, widths, format) => ({ key, label, metric: label, widths, value: (row) => row[key] ?? null, cell: (row) => (row[key] === null || row[key] === undefined ? "–" : format(row[key])) });
  return [
    { key: "pick", label: "", widths: ["22px", "22px"], cell: (row) => [el("button", { type: "button", class: `pick${view.chosen.includes(row.name) ? " on" : ""}`, "aria-pressed": String(view.chosen.includes(row.name)), "aria-label": `Compare ${row.name}`, title: "Compare: choose two", data: { pick: row.name } })] },
    { key: "name", label: "run", widths: ["minmax(150px, 2fr)", "minmax(120px, 2fr)", "minmax(0, 1fr)"], ascending: true, value: (row) => row.name, title: (row) => row.error || row.name, cell: (row) => [el("i", { class: `series-dot ${view.trainings.includes(row.training) ? view.colour(row.training) : "none"}` }), el("span", { class: row.error ? "wrong" : "" }, el("span", { class: "soft hide-small", text: row.name.slice(0, row.name.lastIndexOf("/") + 1) }), row.name.slice(row.name.lastIndexOf("/") + 1))] },
    { key: "weights", label: "weights", widths: ["minmax(70px, 1fr)"], value: (row) => (row.versions && row.versions.length ? row.versions[row.versions.length - 1] : null), cell: (row) => (row.versions ? versionRange(row.versions) : "–") },
    { key: "reward", label: "reward", widths: ["124px", "110px", "96px"], value: (row) => row.reward ?? null, cell: (row) => meter(row.reward, view.low, view.high) },
    number("std", "std", ["44px", "44px"], rewardText),
    number("equal", "no difference", ["92px", ""], share),
    number("episodes", "episodes", ["64px", "64px", "60px"], whole),
    { key: "ends", label: "ended", widths: ["110px", "90px"], value: (row) => row.truncated ?? null, cell: (row) => endsCell(row.ends), title: (row) => Object.entries(row.ends || {}).map(([end, count]) => `${endText(end)}: ${whole(count)}`).join("\n") },
    number("turns", "turns", ["44px", "44px"], few),
    number("sampled", "sampled", ["60px", ""], few),
    { key: "took", label: "time", metric: "time", widths: ["84px", ""], value: (row) => (row.to ? row.to - row.from : null), cell: (row) => (row.to ? spanText(row.to - row.from) : "–"), title: (row) => clockText(row.created) },
    { key: "verdict", label: "verdict", widths: ["92px", "84px", "76px"], cell: (row) => [verdictCell(view, row)] },
  ];
}

function endsCell(ends) {
  if (!ends) return "–";
  return [el("span", { class: "ends-strip" }, Object.entries(ends).map(([end, count]) => {
    const part = el("i", { class: `tone-${endTone(end)}` });
    part.style.flexGrow = count;
    return part;
  }))];
}

function verdictCell(view, row) {
  const known = view.verdicts.get(row.name);
  if (row.live) return el("span", { class: "live", text: "writing", title: "It is being written, or was not sealed" });
  if (known && known.verdict) return el("b", { class: `verdict-text verdict-text-${known.verdict}`, text: known.verdict.replaceAll("_", " ") });
  return el("span", { class: "soft", text: known && known.error ? "failed" : row.figures ? "…" : "reading", title: (known && known.error) || "Runs in view are proved one after the other" });
}
