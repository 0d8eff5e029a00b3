// The shape of an episode: its tree of branches, and its time line.
import { el, svg } from "./dom.js";
import { plural, secondsText, versionRange } from "./format.js";

const LANE_HEIGHT = 26;
const TURN_HEIGHT = 14;
const TREE_WIDTH = 1000;
const TIME_NOTE = "What no call accounts for: the gaps between the bars, and what is before the first and after the last; of a ledger without times, all of it is shown at the end";

/** The tree: one lane per branch, turns drawn once, at their position in tokens. */
export function treeChart(episode, current, choose) {
  const { branches } = episode;
  const longest = Math.max(1, ...branches.map((branch) => branch.length));
  const x = (position) => (position * TREE_WIDTH) / longest;
  const lane = new Map();
  const height = branches.length * LANE_HEIGHT + 8;
  const chart = svg("svg", { viewBox: `0 0 ${TREE_WIDTH} ${height}`, preserveAspectRatio: "none", class: "tree-chart", role: "group", "aria-label": `${plural(branches.length, "branch", "branches")} of this episode` });
  chart.style.height = `${height}px`;
  const onPath = new Set(current ? current.path : []);
  for (const [number, branch] of branches.entries()) {
    const top = number * LANE_HEIGHT + 8;
    for (const turn of branch.turns) {
      if (lane.has(turn.id)) continue;
      lane.set(turn.id, top);
      const left = x(turn.start);
      const middle = top + TURN_HEIGHT / 2;
      if (turn.parent !== null && lane.has(turn.parent) && lane.get(turn.parent) !== top) {
        const from = lane.get(turn.parent) + TURN_HEIGHT / 2;
        chart.append(svg("path", { d: `M ${left} ${from} L ${left} ${middle}`, class: `fork${onPath.has(turn.id) ? " on" : ""}`, "vector-effect": "non-scaling-stroke" }));
      }
      const kind = turn.rejected ? "rejected" : turn.purpose !== "episode" ? "side" : episode.trainedSomewhere.has(turn.id) ? "trained" : "plain";
      const context = Math.max(0.5, x(turn.closing + turn.context));
      const sampled = Math.max(2, x(turn.sampled));
      const words = `turn ${turn.id}${episode.agentName(turn) ? ` of ${turn.detail.agent}` : ""}: ${plural(turn.context, "context token")}, ${turn.sampled} sampled${turn.rejected ? ", discarded" : ""}, weights ${versionRange(turn.versions.map((span) => span[0]))}`;
      const group = svg("g", { class: `turn ${kind}${onPath.has(turn.id) ? " on" : ""}`, tabindex: "0", role: "button", "aria-label": words, "data-turn": turn.id,
        on: {
          click: () => choose(branch, turn),
          keydown: (event) => { if (event.key === "Enter") choose(branch, turn); },
        } },
      svg("title", {}, words),
      svg("rect", { x: left, y: top + 4, width: context, height: TURN_HEIGHT - 8, class: "turn-context" }),
      svg("rect", { x: left + context, y: top, width: sampled, height: TURN_HEIGHT, rx: 2, class: "turn-sampled" }));
      if (turn.closing) group.append(svg("rect", { x: left, y: top - 2, width: Math.max(3, x(turn.closing)), height: TURN_HEIGHT + 4, class: "turn-closing" }));
      chart.append(group);
    }
  }
  const names = el("div", { class: "tree-names" }, branches.map((branch) => {
    const [first] = branch.turns;
    const label = [
      branch.path.length === 1 ? `turn ${branch.id}` : `turns ${branch.path[0]} → ${branch.id}`, branch.main ? "main" : null, episode.severalAgents ? branch.agent : null,
      first.forked_from === null ? null : `rewrites ${first.forked_from}`, branch.exported ? null : "not trained",
    ].filter(Boolean).join(" · ");
    return el("button", { type: "button", class: branch === current ? "on" : "", text: label, data: { branch: branch.id }, title: `Branch that ends with turn ${branch.id}`, on: { click: () => choose(branch, null) } });
  }));
  return el("div", { class: "tree" }, names, el("div", { class: "tree-box" }, chart));
}

/** Where the seconds went. */
export function timeChart(episode, goToTurn) {
  const { spans, placed, total, rest } = episode.view.timeline;
  const whole = Math.max(total || 0, placed, 1e-9);
  const depth = Math.max(0, ...spans.map((span) => span[3]));
  const lanes = Array.from({ length: depth + 1 }, () => el("div", { class: "lane" }));
  let engine = 0;
  let tools = 0;
  let models = 0;
  for (const [kind, start, seconds, level, label, ref] of spans) {
    if (level === 0 && kind === "engine") engine += seconds;
    if (level === 0 && kind === "tool") tools += seconds;
    if (level === 0 && kind === "model") models += seconds;
    const turn = kind === "engine" ? episode.turns[ref] : null;
    const bar = el("button", { type: "button", class: `span ${kind}`, title: `${label}: ${secondsText(seconds)}`, "aria-label": `${label}: ${secondsText(seconds)}`, on: { click: () => { if (turn) goToTurn(turn); } } });
    bar.style.left = `${(100 * start) / whole}%`;
    bar.style.width = `${Math.max(0.15, (100 * seconds) / whole)}%`;
    lanes[level].append(bar);
  }
  const key = el("div", { class: "time-key" },
    el("span", {}, el("i", { class: "engine" }), `engine ${secondsText(engine)}`),
    el("span", {}, el("i", { class: "tool" }), `tools ${secondsText(tools)}`),
    models ? el("span", {}, el("i", { class: "model" }), `other models ${secondsText(models)}`) : null,
    rest !== null ? el("span", { title: TIME_NOTE }, el("i", { class: "rest" }), `waiting and the agent's own code ${secondsText(rest)}`) : null,
    el("span", { class: "soft", text: total ? `${secondsText(total)} total` : "so far" }));
  return el("div", { class: "time" }, lanes, key);
}
