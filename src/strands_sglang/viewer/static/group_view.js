// The samples of one task, side by side, and where two of them part.
import { clear, el } from "./dom.js";
import { endText, endTone, percent, plural, rewardMark, rewardText, secondsText, versionRange, whole } from "./format.js";
import { EpisodeData, partingPoint } from "./episode_data.js";
import { tokenNode } from "./token_strip.js";

const BEFORE = 60;
const AFTER = 160;
const COMPACT = 8; // more samples are shown as one line each

export class GroupView {
  constructor(store, source, { open, changed }) {
    this.store = store;
    this.source = source;
    this.open = open;
    this.changed = changed;
    this.node = el("section", { class: "group", "aria-label": "Group" });
    this.task = "";
    this.pair = [null, null];
    this.known = new Map();
  }

  show(task, pair = []) {
    const rows = this.store.group(task);
    const key = JSON.stringify(rows.map((row) => [row.id, row.events]));
    if (task !== this.task) {
      this.known.clear();
      this.pair = [null, null];
    }
    const ids = new Set(rows.map((row) => row.id));
    const wanted = pair.filter((id) => ids.has(id));
    const next = wanted.length === 2 ? wanted : this.pair[0] ? this.pair : defaultPair(rows);
    const same = task === this.task && key === this.drawn && next[0] === this.pair[0] && next[1] === this.pair[1];
    this.task = task;
    this.pair = next;
    this.drawn = key;
    if (same && this.node.childElementCount) return;
    this.rows = rows;
    this.draw();
  }

  draw() {
    const { rows } = this;
    const scored = rows.filter((row) => row.reward !== null);
    const mean = scored.length ? scored.reduce((sum, row) => sum + row.reward, 0) / scored.length : null;
    const spread = scored.length ? Math.sqrt(scored.reduce((sum, row) => sum + (row.reward - mean) ** 2, 0) / scored.length) : null;
    const high = Math.max(1e-9, ...scored.map((row) => Math.abs(row.reward)));
    const { scrollTop } = this.node.querySelector(".samples") || { scrollTop: 0 };
    this.compare = el("div", { class: "compare" });
    clear(this.node).append(
      el("div", { class: "title-line" }, el("h1", { text: this.task }), el("span", { class: "soft", text: plural(rows.length, "sample") })),
      rows.length ? el("p", { class: "task-prompt", text: rows[0].prompt }) : el("p", { class: "empty", text: "This task has no episodes." }),
      el("div", { class: "facts" }, el("span", {}, "mean reward ", el("b", { text: rewardText(mean) })), el("span", {}, "std ", el("b", { text: rewardText(spread) })),
        scored.length > 1 && spread === 0 ? el("span", { class: "tag tone-text-warn", text: "all rewards are equal: no advantage to learn from" }) : null),
      rows.length > COMPACT
        ? el("div", { class: "samples compact", tabindex: "0", role: "group", "aria-label": "Samples" }, rows.map((row) => this.line(row, mean)))
        : el("div", { class: "samples" }, rows.map((row) => this.sample(row, mean, high))),
      this.compare);
    this.node.querySelector(".samples").scrollTop = scrollTop;
    this.drawComparison();
  }

  sample(row, mean, high) {
    const bar = el("i", { class: row.reward !== null && row.reward < 0 ? "negative" : "" });
    bar.style.width = `${row.reward === null ? 0 : Math.max(1, (100 * Math.abs(row.reward)) / high)}%`;
    return el("article", { class: `sample${this.pair.includes(row.id) ? " paired" : ""}`, data: { id: row.id } },
      el("div", { class: "sample-head" }, this.link(row, `sample ${row.sample}`), el("span", { class: "grow" }), el("span", { class: "reward" }, rewardMark(row.reward, this.store.range)), advantage(row, mean)),
      el("div", { class: "reward-bar" }, bar),
      el("div", { class: "sample-facts" }, el("span", {}, el("b", { class: `dot tone-${endTone(row.end_reason)}` }), endText(row.end_reason)), el("span", { text: plural(row.turns, "turn") }), el("span", { text: `${whole(row.tokens)} tokens` }),
        el("span", { text: `cached ${percent(row.cached_tokens, row.prompt_tokens)}` }), el("span", { text: `weights ${versionRange(row.versions)}` }), row.seconds ? el("span", { text: secondsText(row.seconds) }) : null),
      el("p", { class: row.failure ? "wrong" : "said", dir: "auto", text: row.failure || row.text || "no final text" }),
      el("div", { class: "sample-actions" }, el("span", { class: "soft", text: "compare" }), this.chooser(row, 0, "left"), this.chooser(row, 1, "right")));
  }

  /** A sample as one line, in a group of many. */
  line(row, mean) {
    return el("article", { class: `sample${this.pair.includes(row.id) ? " paired" : ""}`, data: { id: row.id }, title: row.failure || row.text || "no final text" },
      this.link(row, String(row.sample)), el("b", { class: `dot tone-${endTone(row.end_reason)}`, title: endText(row.end_reason) }),
      rewardMark(row.reward, this.store.range), advantage(row, mean), el("span", { class: "grow" }), this.chooser(row, 0, "L"), this.chooser(row, 1, "R"));
  }

  link(row, text) {
    return el("a", { href: `#e=${encodeURIComponent(row.id)}`, text, "aria-label": `sample ${row.sample}`, on: { click: (event) => { event.preventDefault(); this.open(row.id); } } });
  }

  chooser(row, number, text) {
    const chosen = this.pair[number] === row.id;
    const title = `Compare on the ${number ? "right" : "left"}`;
    return el("button", { type: "button", class: `quiet${chosen ? " on" : ""}`, text, "aria-label": title, "aria-pressed": String(chosen), title, on: { click: () => this.choose(number, row.id) } });
  }

  choose(number, id) {
    const pair = [...this.pair];
    pair[number] = id;
    if (pair[1 - number] === id) pair[1 - number] = this.pair[number];
    this.pair = pair;
    this.draw();
    this.changed();
  }

  /** An episode; its tokens are ids while the tokenizer is loading, unless `wait` is true. */
  async load(id, wait) {
    const known = this.known.get(id);
    if (known && !(wait && known.view.loading)) return known;
    const loaded = new EpisodeData(await this.source.episode(id, undefined, wait));
    this.known.set(id, loaded);
    return loaded;
  }

  async drawComparison() {
    const [left, right] = this.pair;
    if (!left || !right || left === right) return;
    const { compare } = this;
    compare.append(el("p", { class: "loading", text: "Comparing …" }));
    try {
      for (const wait of [false, true]) {
        const pair = await Promise.all([this.load(left, wait), this.load(right, wait)]);
        if (compare !== this.compare) return;
        this.drawParting(pair);
        if (!pair.some((episode) => episode.view.loading)) return;
        compare.append(el("p", { class: "note loading-tokenizer", role: "status", text: "Loading the tokenizer: the texts of tokens follow." }));
      }
    } catch (error) {
      clear(compare).append(el("p", { class: "failure", text: error.message }));
    }
  }

  drawParting(pair) {
    const branches = pair.map((episode) => episode.mainBranch());
    const compare = clear(this.compare);
    if (!branches[0] || !branches[1]) {
      compare.append(el("p", { class: "empty", text: "One of the two has no turns yet." }));
      return;
    }
    const at = partingPoint(branches[0], branches[1]);
    compare.append(el("h2", { text: at === null ? "Both have the same tokens" : `They diverge at token ${whole(at)}` }));
    if (at !== null) compare.append(el("div", { class: "two" }, branches.map((branch) => this.side(branch, at))));
  }

  side(branch, at) {
    const from = Math.max(0, at - BEFORE);
    const to = Math.min(branch.length, at + AFTER);
    const strip = el("div", { class: "strip" });
    if (from) strip.append(el("span", { class: "soft", text: "… " }));
    for (let position = from; position < to; position++) {
      const node = tokenNode(branch, branch.offset(position), "origin");
      if (position === at) node.classList.add("parts");
      if (position < at) node.classList.add("shared");
      strip.append(node, node.endsLine ? "\n" : "");
    }
    if (to < branch.length) strip.append(el("span", { class: "soft", text: ` … ${plural(branch.length - to, "more token")}` }));
    const id = branch.episode.id;
    const link = el("a", { href: `#e=${encodeURIComponent(id)}&t=${at}`, text: id });
    const turn = at < branch.length ? `turn ${branch.episode.turnOf[branch.offset(at)]}` : "it ends here";
    return el("div", { class: "side" }, el("div", { class: "who" }, link, el("span", { text: turn })), strip);
  }
}

function advantage(row, mean) {
  if (row.reward === null || mean === null) return null;
  const value = row.reward - mean;
  return el("span", { class: "soft", title: "reward minus the mean of the group", text: `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}` });
}

/** The best and the worst sample; the first two if rewards do not tell. */
function defaultPair(rows) {
  if (rows.length < 2) return [null, null];
  const scored = rows.filter((row) => row.reward !== null).sort((one, other) => other.reward - one.reward);
  if (scored.length > 1 && scored[0].reward !== scored[scored.length - 1].reward) return [scored[0].id, scored[scored.length - 1].id];
  return [rows[0].id, rows[1].id];
}
