// All tasks of a run or a training: mean, spread, best and worst sample, groups without any difference in reward.
import { clear, el } from "./dom.js";
import { plural, rewardText, whole } from "./format.js";
import { inOrder, sortable } from "./rows.js";
import { EpisodeTable } from "./table.js";

const TASK_FILTERS = {
  all: ["all", () => true],
  mixed: ["with difference", (task) => task.groups > task.equal],
  equal: ["without difference", (task) => task.groups > 0 && task.equal === task.groups],
  low: ["never passed", (task) => task.high !== null && task.high < 1],
  high: ["always passed", (task) => task.low !== null && task.low >= 1],
};

/** A number with a bar behind it that shows where it lies between two others. */
export function meter(value, low, high) {
  if (value === null || value === undefined) return [el("span", { class: "soft", text: "–" })];
  const bar = el("i", {});
  const share = high > low ? (value - low) / (high - low) : Number(value >= 1);
  bar.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share)))}%`;
  return [el("span", { class: "meter" }, bar), el("span", { text: rewardText(value) })];
}

export class TaskView {
  /** `load()` returns the tasks; `group(task)` and `episode(place)` return addresses. */
  constructor({ load, changed, group, episode }) {
    Object.assign(this, { load, changed, tasks: [], filter: "all", query: "", sort: { key: "", descending: false } });
    const sample = (name) => (task) => (task[name] ? [el("a", { class: "own-link", href: episode(task[name]), text: rewardText(name === "best" ? task.high : task.low), title: `Open ${task[name].filter(Boolean).join(", ")}` })] : "–");
    this.columns = [
      { key: "task", label: "task", widths: ["minmax(110px, 1.2fr)", "minmax(90px, 1.2fr)", "minmax(0, 1fr)"], ascending: true, value: (task) => task.task, cell: (task) => [el("a", { class: "own-link", href: group(task), text: task.task })], title: (task) => task.task },
      { key: "mean", label: "mean reward", widths: ["130px", "120px", "104px"], value: (task) => task.mean, cell: (task) => meter(task.mean, this.low, this.high) },
      { key: "std", label: "std", metric: "std", widths: ["52px", "48px"], value: (task) => task.std, cell: (task) => rewardText(task.std) },
      { key: "best", label: "best", metric: "best", widths: ["52px", "48px", "44px"], value: (task) => task.high, cell: sample("best") },
      { key: "worst", label: "worst", metric: "worst", widths: ["52px", "48px", "44px"], ascending: true, value: (task) => task.low, cell: sample("worst") },
      { key: "scored", label: "samples", metric: "samples", widths: ["64px", "64px"], value: (task) => task.episodes, cell: (task) => whole(task.episodes), title: (task) => `${whole(task.scored)} with a reward` },
      {
        key: "equal", label: "no difference", metric: "equal", widths: ["104px", "98px"], value: (task) => (task.groups ? task.equal / task.groups : null),
        cell: (task) => (task.groups ? (task.groups === 1 ? (task.equal ? "yes" : "no") : `${task.equal} of ${task.groups}`) : "–"), title: () => "Groups in which all rewards are equal: nothing can be learnt from them",
      },
      { key: "prompt", label: "question", widths: ["minmax(160px, 3fr)"], cell: (task) => task.prompt.replace(/\s+/g, " "), title: (task) => task.prompt },
    ];
    this.table = new EpisodeTable({ open: (id) => { location.href = group(this.shown.find((task) => task.id === id)); }, sortBy: (key) => this.sortBy(key), columns: this.columns, label: "Tasks", href: null, none: "No task matches." });
    this.input = el("input", { type: "search", class: "search", placeholder: "Search tasks …", "aria-label": "Search tasks", autocomplete: "off", spellcheck: "false", on: { input: () => { this.query = this.input.value; this.draw(); } } });
    this.chips = el("div", { class: "chips" });
    this.count = el("span", { class: "soft count", role: "status" });
    this.facts = el("div", { class: "facts" });
    this.node = el("section", { class: "tasks", "aria-label": "Tasks" }, el("div", { class: "title-line" }, el("h1", { text: "By task" })), this.facts, el("div", { class: "filter-bar" }, this.input, this.chips, this.count), this.table.node);
  }

  /** The state as a word of the address, and back. */
  written() { return [this.filter, this.sort.key ? (this.sort.descending ? "-" : "") + this.sort.key : ""].join(",").replace(/,$/, ""); }

  read(word) {
    const [filter, order = ""] = word.split(",");
    this.filter = TASK_FILTERS[filter] ? filter : "all";
    this.sort = { key: order.replace(/^-/, ""), descending: order.startsWith("-") };
  }

  async show() {
    this.tasks = (await this.load()).map((task) => ({ ...task, id: task.task, order: sortable(task.task) }));
    this.draw();
  }

  sortBy(key) {
    const descending = !this.columns.find((column) => column.key === key).ascending;
    if (this.sort.key !== key) this.sort = { key, descending };
    else if (this.sort.descending === descending) this.sort.descending = !descending;
    else this.sort = { key: "", descending: false };
    this.draw();
    this.changed();
  }

  draw() {
    const { tasks, sort } = this;
    const scored = tasks.filter((task) => task.mean !== null);
    this.low = scored.reduce((low, task) => Math.min(low, task.low), 0);
    this.high = scored.reduce((high, task) => Math.max(high, task.high), this.low);
    const words = this.query.trim().toLowerCase();
    const rows = tasks.filter((task) => TASK_FILTERS[this.filter][1](task) && (!words || `${task.task}\n${task.prompt}`.toLowerCase().includes(words)));
    const column = this.columns.find((one) => one.key === sort.key);
    this.shown = column ? inOrder(rows, column.key === "task" ? null : column.value, sort.descending) : rows;
    const groups = tasks.reduce((sum, task) => sum + task.groups, 0);
    const equal = tasks.reduce((sum, task) => sum + task.equal, 0);
    const mean = scored.length ? scored.reduce((sum, task) => sum + task.mean, 0) / scored.length : null;
    clear(this.facts).append(el("span", {}, el("b", { text: plural(tasks.length, "task") })), el("span", {}, "mean over tasks ", el("b", { text: rewardText(mean) })),
      el("span", { title: "All rewards of the group are equal: nothing can be learnt from it" }, "groups without difference ", el("b", { class: equal && equal === groups ? "tone-text-warn" : "", text: groups ? `${whole(equal)} of ${whole(groups)}` : "–" })));
    clear(this.chips).append(...Object.entries(TASK_FILTERS).map(([key, [label, passes]]) => el("button", {
      type: "button", class: `chip toggle${this.filter === key ? " on" : ""}`, "aria-pressed": String(this.filter === key), text: `${label} ${whole(tasks.filter(passes).length)}`,
      on: { click: () => { this.filter = key; this.draw(); this.changed(); } },
    })));
    this.count.textContent = this.shown.length === tasks.length ? plural(tasks.length, "task") : `${whole(this.shown.length)} of ${plural(tasks.length, "task")}`;
    this.table.fit(this.shown, sort);
  }
}
