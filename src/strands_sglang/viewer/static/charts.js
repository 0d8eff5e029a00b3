// Small charts of the run. Each returns an element; a click reports what was chosen.
import { el, svg } from "./dom.js";
import { brief, clockText, endText, endTone, percent, plural, rewardText, versionText, whole } from "./format.js";
import { columnOf, metricColumns } from "./columns.js";
import { counted, histogramBars, rewardOverTime } from "./rows.js";

function metricText(metric, value) {
  if (metric === "cached") return `${Math.round(100 * value)} %`;
  if (metric === "reward" || metric.startsWith("part:")) return rewardText(value);
  return Number.isInteger(value) ? whole(value) : value.toFixed(value < 10 ? 2 : 0);
}

export function barRangeText(metric, bar) {
  return bar.low === bar.high ? metricText(metric, bar.low) : `${metricText(metric, bar.low)} – ${metricText(metric, bar.high)}`;
}

/** A histogram of one metric whose bars filter the table; `parts`: names of the parts of rewards. */
export function histogramChart(rows, filters, parts, choose, chooseMetric) {
  const { value: measure, metric: label } = columnOf(filters.metric);
  const bars = histogramBars(rows.map(measure));
  const most = Math.max(1, ...bars.map((bar) => bar.count));
  const select = el("select", { class: "quiet", "aria-label": "What the histogram shows", on: { change: (event) => chooseMetric(event.target.value) } },
    metricColumns(parts).map(({ key, metric }) => el("option", { value: key, selected: key === filters.metric, text: metric })));
  const missing = rows.length - bars.reduce((sum, bar) => sum + bar.count, 0);
  const chart = el("div", { class: "histogram", role: "group", "aria-label": `Histogram of ${label}` },
    bars.map((bar) => {
      const chosen = filters.low === bar.low && filters.high === bar.high;
      const words = `${barRangeText(filters.metric, bar)}: ${plural(bar.count, "episode")}`;
      const button = el("button", {
        class: `bar${chosen ? " chosen" : ""}`, type: "button", title: words, "aria-label": words, "aria-pressed": String(chosen),
        on: { click: () => (chosen ? choose(null, null) : choose(bar.low, bar.high)) },
      }, el("i"));
      button.firstChild.style.height = bar.count ? `${Math.max(3, (100 * bar.count) / most)}%` : "0";
      return button;
    }));
  const first = bars[0];
  const last = bars[bars.length - 1];
  const axis = bars.length
    ? el("div", { class: "axis" }, el("span", { text: metricText(filters.metric, first.low) }),
      missing > 0 ? el("span", { text: `${whole(missing)} without` }) : null,
      el("span", { text: metricText(filters.metric, last.high) }))
    : el("p", { class: "soft", text: "no values yet" });
  return el("section", { class: "panel" }, el("h2", {}, select), chart, axis);
}

/** Mean reward over the time at which episodes ended, with their number behind it. */
export function rewardChart(rows) {
  const steps = rewardOverTime(rows);
  const body = steps.length ? rewardLine(steps) : el("p", { class: "soft", text: "shown once two episodes have ended" });
  return el("section", { class: "panel wide" }, el("h2", { text: "Reward over time" }), body);
}

function rewardLine(steps) {
  const width = 480;
  const height = 96;
  const scored = steps.filter((step) => step.mean !== null);
  const values = scored.map((step) => step.mean);
  let low = Math.min(0, ...values);
  let high = Math.max(...values, low + 1e-9);
  if (high - low < 1e-6) high = low + 1;
  const most = Math.max(1, ...steps.map((step) => step.count));
  const x = (number) => ((number + 0.5) * width) / steps.length;
  const y = (value) => height - 8 - ((value - low) / (high - low)) * (height - 18);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "line-chart", role: "img",
    "aria-label": `Mean reward between ${rewardText(Math.min(...values))} and ${rewardText(Math.max(...values))}` });
  for (const [number, step] of steps.entries()) {
    const size = (step.count / most) * 22;
    const bar = svg("rect", { x: (number * width) / steps.length + 0.5, y: height - size, width: width / steps.length - 1, height: size, class: "count-bar" },
      svg("title", {}, `${clockText(step.start)}: ${plural(step.count, "episode")}${step.mean === null ? "" : `, mean reward ${rewardText(step.mean)}`}`));
    chart.append(bar);
  }
  const points = steps.map((step, number) => (step.mean === null ? null : `${x(number).toFixed(1)},${y(step.mean).toFixed(1)}`)).filter(Boolean);
  chart.append(svg("polyline", { points: points.join(" "), class: "mean-line", "vector-effect": "non-scaling-stroke" }));
  const span = steps[steps.length - 1].end - steps[0].start;
  return el("div", { class: "chart-box" },
    el("div", { class: "chart-scale" }, el("span", { text: rewardText(high) }), el("span", { text: rewardText(low) })),
    el("div", { class: "chart-body" }, chart,
      el("div", { class: "axis" }, el("span", { text: clockText(steps[0].start).slice(11, 19) }),
        el("span", { text: span < 120 ? `${Math.round(span)} s` : `${Math.round(span / 60)} min` }),
        el("span", { text: clockText(steps[steps.length - 1].end).slice(11, 19) }))));
}

/** How episodes ended; a click filters. */
export function endChart(rows, filters, choose) {
  const ends = counted(rows, (row) => [row.end_reason || "running"]);
  return barList("How they ended", ends, rows.length, filters.end, choose,
    (end) => ({ label: endText(end === "running" ? null : end), tone: endTone(end === "running" ? null : end) }));
}

/** Episodes by weight version, with their mean reward; a click filters. Null if there is one version only. */
export function weightsChart(rows, filters, choose) {
  const sums = new Map();
  for (const row of rows) {
    for (const version of row.versions) {
      const sum = sums.get(String(version)) || { reward: 0, scored: 0 };
      if (row.reward !== null) {
        sum.reward += row.reward;
        sum.scored++;
      }
      sums.set(String(version), sum);
    }
  }
  const versions = counted(rows, (row) => row.versions.map(String)).slice(0, 200);
  if (versions.length < 2 && !filters.weights) return null;
  const newest = versions.sort((one, other) => other[0].localeCompare(one[0], "en", { numeric: true }));
  return barList("Weights", newest, rows.length, filters.weights, choose, (version) => {
    const { reward, scored } = sums.get(version);
    return { label: versionText(version === "null" ? null : version), tone: "accent", note: scored ? `⌀ ${rewardText(reward / scored)}` : "" };
  });
}

function barList(title, entries, total, chosen, choose, describe) {
  const most = Math.max(1, ...entries.map((entry) => entry[1]));
  const list = el("div", { class: `bar-list${entries.some(([key]) => describe(key).note) ? " with-means" : ""}` }, entries.map(([key, count]) => {
    const { label, tone, note } = describe(key);
    const bar = el("u", { class: `tone-${tone}` });
    bar.style.width = `${Math.max(2, (100 * count) / most)}%`;
    return el("button", {
      type: "button", class: `bar-row${chosen === key ? " chosen" : ""}`, "aria-pressed": String(chosen === key),
      title: `${label}: ${plural(count, "episode")}, ${percent(count, total)}`, on: { click: () => choose(chosen === key ? "" : key) },
    }, el("span", { class: "name", text: label }), el("span", { class: "track" }, bar), note ? el("span", { class: "mean", text: note }) : null,
    el("span", { class: "num", text: whole(count) }));
  }));
  return el("section", { class: `panel ${title.toLowerCase().split(" ")[0]}` }, el("h2", { text: title }), entries.length ? list : el("p", { class: "soft", text: "none yet" }));
}

/** The figures at the top of the run. */
export function figures(rows) {
  let tokens = 0, sampled = 0, turns = 0, prompt = 0, cached = 0, reward = 0, scored = 0, failures = 0, malformed = 0, toolErrors = 0, running = 0;
  const tasks = new Set();
  for (const row of rows) {
    tasks.add(row.task_id);
    tokens += row.tokens;
    sampled += row.sampled_tokens;
    turns += row.turns;
    prompt += row.prompt_tokens;
    cached += row.cached_tokens;
    malformed += row.failed_calls;
    toolErrors += row.tool_errors;
    if (row.failure) failures++;
    if (row.end_reason === null) running++;
    if (row.reward !== null) {
      reward += row.reward;
      scored++;
    }
  }
  const figure = (label, value, note) => el("div", { class: "figure" }, el("b", { text: value }), el("span", { text: label }), note ? el("small", { text: note }) : null);
  return el("div", { class: "figures" },
    figure(rows.length === 1 ? "episode" : "episodes", whole(rows.length), [plural(tasks.size, "task"), running ? `${whole(running)} running` : ""].filter(Boolean).join(", ")),
    figure("mean reward", scored ? rewardText(reward / scored) : "–", scored && scored < rows.length ? `${whole(scored)} scored` : null),
    figure("turns", brief(turns), rows.length ? `${(turns / rows.length).toFixed(1)} each` : null),
    figure("tokens", brief(tokens), `${brief(sampled)} sampled`),
    figure("cached", percent(cached, prompt), prompt ? `of ${brief(prompt)} sent` : null),
    figure(failures === 1 ? "failure" : "failures", whole(failures), malformed || toolErrors ? `${whole(malformed)} malformed calls, ${whole(toolErrors)} tool errors` : null));
}
