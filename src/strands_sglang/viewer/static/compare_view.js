// Two runs or trainings on the same tasks: the difference with its interval, task by task, and two answers side by side.
import { clear, el } from "./dom.js";
import { endText, endTone, plural, rewardText, versionRange, whole } from "./format.js";
import { getJson } from "./source.js";

const CHANGES = { better: "better", higher: "higher, not clear", equal: "equal", lower: "lower, not clear", worse: "worse" };
const SHOWN_TASKS = 200;

export function signed(value) {
  return value === null || value === undefined ? "–" : `${value < 0 ? "−" : "+"}${rewardText(Math.abs(value))}`;
}

function intervalText({ low, high }) {
  return low === null ? "no interval" : `${signed(low)} … ${signed(high)}`;
}

export class CompareView {
  /** `names()` returns what can be compared; `changed()` is called when something else was chosen. */
  constructor({ names, changed }) {
    Object.assign(this, { names, changed, a: "", b: "", last: "", task: "", which: "best", filter: "" });
    this.node = el("section", { class: "compare-page", "aria-label": "Comparison" });
  }

  read(parameters) {
    for (const name of ["a", "b", "last", "task", "filter"]) this[name] = parameters.get(name) || "";
    this.which = parameters.get("which") === "worst" ? "worst" : "best";
  }

  write(parameters) {
    for (const name of ["a", "b", "last", "task", "filter"]) if (this[name]) parameters.set(name, this[name]);
    if (this.which !== "best") parameters.set("which", this.which);
  }

  set(change) {
    Object.assign(this, change);
    this.changed();
    this.show();
  }

  async show() {
    const names = this.names();
    if (!names.includes(this.a)) this.a = names[0] || "";
    if (!names.includes(this.b)) this.b = names.find((name) => name !== this.a) || this.a;
    const query = new URLSearchParams({ a: this.a, b: this.b, last: this.last });
    const asked = (this.asked = `${query}`);
    if (this.drawn !== asked) clear(this.node).append(el("p", { class: "loading", text: "Comparing …" }));
    try {
      const found = await getJson(`api/compare?${query}`);
      if (this.asked !== asked) return;
      this.drawn = asked;
      const text = JSON.stringify([found, this.task, this.which, this.filter]);
      if (text === this.text && this.node.querySelector(".versus")) return;
      this.text = text;
      this.draw(found, names);
    } catch (error) {
      if (this.asked !== asked) return;
      clear(this.node).append(el("p", { class: "failure", text: error.message }));
    }
  }

  draw(found, names) {
    const choose = (key) => el("select", { class: "quiet", "aria-label": `Run ${key.toUpperCase()}`, on: { change: (event) => this.set({ [key]: event.target.value, task: "" }) } },
      names.map((name) => el("option", { value: name, selected: name === this[key], text: name })));
    const last = el("select", { class: "quiet", "aria-label": "Steps", on: { change: (event) => this.set({ last: event.target.value }) } },
      [["", "all steps"], ["1", "last step"], ["5", "last 5 steps"], ["20", "last 20 steps"], ["50", "last 50 steps"]].map(([value, text]) => el("option", { value, selected: value === this.last, text })));
    const swap = el("button", { type: "button", class: "quiet", text: "⇄", title: "Swap A and B", "aria-label": "Swap A and B", on: { click: () => this.set({ a: this.b, b: this.a }) } });
    const count = found.tasks.length;
    const tasks = found.tasks.filter((task) => !this.filter || task.change === this.filter).sort((one, other) => Math.abs(other.difference.value) - Math.abs(one.difference.value));
    const chosen = tasks.find((task) => task.task === this.task) || tasks[0];
    const reach = Math.max(0.05, ...found.tasks.map(({ difference }) => Math.max(Math.abs(difference.value), Math.abs(difference.low || 0), Math.abs(difference.high || 0))));
    clear(this.node).append(...[
      el("div", { class: "versus" }, el("label", {}, el("b", { class: "side-name s0", text: "A" }), choose("a")), swap, el("label", {}, el("b", { class: "side-name s1", text: "B" }), choose("b")), last),
      count ? el("div", { class: "verdicts" },
        this.figure("mean reward", found.means, found.reward, found.confidence), this.figure(`reward ≥ ${found.threshold}`, found.shares, found.passed, found.confidence),
        this.changes(found)) : el("p", { class: "empty", text: "They have no task with rewards in common." }),
      found.other ? el("p", { class: "soft small", text: `${plural(found.other, "task")} with the same id and another prompt in B: left out` }) : null,
      found.only.some(Boolean) ? el("p", { class: "soft small", text: `${plural(found.only[0], "task")} only in A, ${whole(found.only[1])} only in B: left out` }) : null,
      count ? el("div", { class: "compare-columns" },
        el("div", { class: "compare-tasks", role: "list", "aria-label": "Tasks" }, tasks.slice(0, SHOWN_TASKS).map((task) => this.line(task, task === chosen, reach)),
          tasks.length > SHOWN_TASKS ? el("p", { class: "soft small", text: `and ${plural(tasks.length - SHOWN_TASKS, "more task")}, which differ less` }) : null),
        (this.answers = el("div", { class: "answers" }))) : null,
    ].filter(Boolean));
    if (chosen && count) this.showAnswers(chosen);
  }

  figure(label, [first, second], difference, confidence) {
    const clear = difference.low !== null && (difference.low > 0 || difference.high < 0);
    const tone = !clear ? "" : difference.value > 0 ? " tone-text-good" : " tone-text-bad";
    return el("section", { class: "panel versus-figure" }, el("h2", { text: label }),
      el("b", { class: `big${tone}`, text: signed(difference.value) }),
      el("span", { class: "soft", text: `${Math.round(100 * confidence)} % interval ${intervalText(difference)}` }),
      el("span", { class: "soft" }, `A ${rewardText(first)}, B ${rewardText(second)}; mean over ${plural(difference.count, "task")}`),
      el("span", { class: "soft", text: difference.low === null ? "the data does not determine an interval" : clear ? `B is ${difference.value > 0 ? "better" : "worse"} on these tasks` : "no clear difference" }));
  }

  changes({ counts, tasks }) {
    const bar = el("div", { class: "change-bar" }, Object.keys(CHANGES).filter((name) => counts[name]).map((name) => {
      const part = el("i", { class: `change-${name}`, title: `${CHANGES[name]}: ${plural(counts[name], "task")}` });
      part.style.flexGrow = counts[name];
      return part;
    }));
    return el("section", { class: "panel" }, el("h2", { text: "Tasks" }), bar, el("div", { class: "change-list" }, Object.entries(CHANGES).map(([name, label]) => el("button", {
      type: "button", class: `chip toggle${this.filter === name ? " on" : ""}`, "aria-pressed": String(this.filter === name), title: name === "better" || name === "worse" ? "The interval of this task does not contain 0" : label,
      on: { click: () => this.set({ filter: this.filter === name ? "" : name }) },
    }, el("span", { class: `dot change-${name}` }), `${label} ${whole(counts[name])}`)), el("span", { class: "soft small", text: `of ${plural(tasks.length, "task")}` })));
  }

  /** One task: the means, and the interval of the difference around 0. */
  line(task, chosen, reach) {
    const { value, low, high } = task.difference;
    const at = (one) => `${50 + (50 * one) / reach}%`;
    const dot = el("i", { class: `forest-dot change-${task.change}` });
    dot.style.left = at(value);
    const bar = low === null ? null : el("i", { class: `forest-bar change-${task.change}` });
    if (bar) {
      bar.style.left = at(low);
      bar.style.width = `${(50 * (high - low)) / reach}%`;
    }
    return el("button", { type: "button", role: "listitem", class: `task-line${chosen ? " on" : ""}`, title: `${task.prompt}\n${CHANGES[task.change]}, ${task.counts[0]} and ${task.counts[1]} samples, interval ${intervalText(task.difference)}`, data: { task: task.task }, on: { click: () => this.set({ task: task.task }) } },
      el("span", { class: "name", text: task.task }), el("span", { class: "num soft", text: `${rewardText(task.first)} → ${rewardText(task.second)}` }),
      el("span", { class: "forest" }, bar, dot), el("b", { class: `num tone-text-${task.change === "better" ? "good" : task.change === "worse" ? "bad" : "soft"}`, text: signed(value) }));
  }

  async showAnswers(task) {
    const box = this.answers;
    const which = (name, text) => el("button", { type: "button", class: `quiet${this.which === name ? " on" : ""}`, "aria-pressed": String(this.which === name), text, on: { click: () => this.set({ which: name, task: task.task }) } });
    box.append(el("div", { class: "title-line" }, el("h1", { text: task.task }), el("span", { class: "grow" }), which("best", "best samples"), which("worst", "worst samples")), el("p", { class: "task-prompt", text: task.prompt }));
    const two = el("div", { class: "two" });
    box.append(two);
    const sides = await Promise.all(task[this.which].map((place, number) => this.answer(place, number).catch((error) => el("p", { class: "failure", text: error.message }))));
    two.append(...sides);
  }

  async answer([run, id], number) {
    const base = `run/${encodeURIComponent(run)}/`;
    const { row, end } = await getJson(`${base}api/episode?id=${encodeURIComponent(id)}`);
    const text = (end && (end.failure ? `${end.failure.kind}: ${end.failure.message}` : end.text)) || row.failure || row.text || "no final text";
    return el("article", { class: `answer s${number}` },
      el("div", { class: "who" }, el("b", { class: `side-name s${number}`, text: "AB"[number] }), el("span", { text: run }), el("a", { href: `/${base}#e=${encodeURIComponent(id)}`, text: `${id}: token by token` })),
      el("div", { class: "facts" }, el("span", {}, "reward ", el("b", { text: rewardText(row.reward) })), el("span", {}, el("b", { class: `dot tone-${endTone(row.end_reason)}` }), endText(row.end_reason)),
        el("span", { text: plural(row.turns, "turn") }), el("span", { text: plural(row.tool_calls, "tool call") }), el("span", { text: `weights ${versionRange(row.versions)}` })),
      el("p", { class: `text${row.failure ? " wrong" : ""}`, dir: "auto", text: String(text) }));
  }
}
