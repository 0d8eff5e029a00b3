// Curves of a training: several quantities over the same steps, with one cross-hair for all of them.
import { byId, clear, el, svg } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 100;

/** The cross-hair that all charts of a page share; `open(point)` is called for a click. */
export class CrossHair {
  constructor(open) {
    this.open = open;
    this.charts = [];
    this.span = [0, 1];
  }

  /** Forget the charts; those drawn next run from the first x to the last. */
  begin(first, last) {
    this.charts = [];
    this.span = first === last ? [first - 1, last + 1] : [first, last];
    byId("card").hidden = true;
  }

  /** The area of a chart: a drawing, its `lines`, and how a value of them is written. */
  area(drawing, { lines, format }) {
    const chart = { lines, format, hair: el("div", { class: "hair", hidden: true }) };
    this.charts.push(chart);
    const follow = (event) => {
      const box = area.getBoundingClientRect();
      this.point(chart, Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)), event);
    };
    const area = el("div", { class: "curve-area", on: { pointermove: follow, pointerleave: () => this.leave(), click: (event) => { follow(event); this.open(this.chosen.point); } } }, drawing, chart.hair);
    return area;
  }

  share(x) { return (x - this.span[0]) / (this.span[1] - this.span[0]); }

  /** Mark the step nearest to a share of the width in every chart, and list the values of one of them. */
  point(chart, share, event) {
    const wanted = this.span[0] + share * (this.span[1] - this.span[0]);
    let nearest = null;
    for (const line of chart.lines) for (const point of line.points) if (nearest === null || Math.abs(point.x - wanted) < Math.abs(nearest.x - wanted)) nearest = point;
    if (!nearest) return;
    this.chosen = nearest;
    for (const { hair } of this.charts) {
      hair.hidden = false;
      hair.style.left = `${100 * this.share(nearest.x)}%`;
    }
    const card = clear(byId("card"));
    card.append(el("b", { text: nearest.point.label }), el("span", {}));
    for (const line of chart.lines) {
      const here = line.points.find((point) => point.x === nearest.x);
      if (here) card.append(el("span", { class: `key ${line.colour}`, text: line.name }), el("span", { class: "num", text: chart.format(here.y) + (here.spread ? ` ± ${chart.format(here.spread)}` : "") }));
    }
    card.hidden = false;
    card.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - card.offsetWidth - 8))}px`;
    card.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - card.offsetHeight - 8))}px`;
  }

  leave() {
    for (const { hair } of this.charts) hair.hidden = true;
    byId("card").hidden = true;
  }
}

/** Ticks of an axis: about three round numbers from low to high. */
export function ticksOf(low, high) {
  const raw = (high - low) / 3 || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((one) => one >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

/** The mean of each value with its neighbours, `window` of them in all; missing values stay missing. */
export function smoothed(points, window) {
  if (window < 2) return points;
  const half = Math.floor(window / 2);
  return points.map((point, number) => {
    if (point.y === null) return point;
    const near = points.slice(Math.max(0, number - half), number + half + 1).filter((one) => one.y !== null);
    return { ...point, y: near.reduce((sum, one) => sum + one.y, 0) / near.length };
  });
}

/**
 * A panel with a chart. `lines`: [{name, colour, dashed, points: [{x, y, spread, point}]}], y null where it is unknown.
 * `format(value)` writes a value; `most`: the end of the axis, if it has one; `window`: over how many steps it is smoothed.
 */
export function curveChart({ key, title, about, lines, format, most = null, window = 1, hair, wide = false, extra = null }) {
  const known = lines.map((line) => ({ ...line, points: line.points.filter((point) => Number.isFinite(point.y)) })).filter((line) => line.points.length);
  const last = known.length === 1 ? known[0].points[known[0].points.length - 1] : null;
  const head = el("h2", { title: about }, el("span", { text: title }), el("span", { class: "grow" }), extra, last ? el("b", { class: "now", title: last.point.label, text: format(last.y) }) : null);
  const node = el("section", { class: `panel curve${wide ? " wide" : ""}`, data: { key } }, head);
  if (!known.length) {
    node.append(el("p", { class: "soft small", text: "not recorded" }));
    return node;
  }
  let low = 0;
  let high = 0;
  for (const { points } of known) {
    for (const { y, spread = 0 } of points) {
      low = Math.min(low, y - (spread || 0));
      high = Math.max(high, y + (spread || 0));
    }
  }
  if (most !== null && high <= most) high = Math.min(most, high * 1.15 || most);
  if (most !== null && low < 0 && known.every((line) => line.points.every((point) => point.y >= 0))) low = 0;
  if (high - low < 1e-9) high = low + 1;
  const ticks = ticksOf(low, high);
  high = Math.max(high, ticks[ticks.length - 1]);
  const down = (value) => HEIGHT * (1 - (Math.max(low, Math.min(high, value)) - low) / (high - low));
  const right = (x) => WIDTH * hair.share(x);
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve-chart", role: "img", "aria-label": `${title}: ${known.map((line) => `${line.name} ${format(line.points[line.points.length - 1].y)}`).join(", ")}` });
  for (const tick of ticks) chart.append(svg("path", { d: `M0 ${down(tick)}H${WIDTH}`, class: "grid-line", "vector-effect": "non-scaling-stroke" }));
  for (const line of known) {
    const spread = line.points.filter((point) => point.spread);
    if (spread.length > 1) {
      const upper = spread.map((point) => `${right(point.x).toFixed(1)},${down(point.y + point.spread).toFixed(2)}`);
      const lower = spread.map((point) => `${right(point.x).toFixed(1)},${down(point.y - point.spread).toFixed(2)}`).reverse();
      chart.append(svg("polygon", { points: [...upper, ...lower].join(" "), class: `band ${line.colour}` }));
    }
    if (window > 1) chart.append(path(line.points, right, down, `curve-line raw ${line.colour}`));
    chart.append(path(smoothed(line.points, window), right, down, `curve-line ${line.colour}${line.dashed ? " dashed" : ""}`));
  }
  const scale = el("div", { class: "curve-scale" }, ticks.map((tick) => {
    const label = el("span", { text: format(tick) });
    label.style.top = `${down(tick)}%`;
    return label;
  }));
  node.append(el("div", { class: "curve-box" }, scale, hair.area(chart, { lines: known, format })));
  return node;
}

function path(points, right, down, name) {
  const places = points.map((point) => `${right(point.x).toFixed(1)} ${down(point.y).toFixed(2)}`);
  const d = places.length === 1 ? `M${places[0]}h0.01` : `M${places.join("L")}`;
  return svg("path", { d, class: name, "vector-effect": "non-scaling-stroke" });
}

/** What share each end reason has at each step, as columns; `tone(end)` gives the colour. */
export function endsChart({ title, points, hair, tone, text }) {
  const node = el("section", { class: "panel curve wide", data: { key: "ends" } }, el("h2", {}, el("span", { text: title })));
  const total = new Map();
  for (const { ends } of points) for (const [end, count] of Object.entries(ends)) total.set(end, (total.get(end) || 0) + count);
  if (!total.size) {
    node.append(el("p", { class: "soft small", text: "none has ended yet" }));
    return node;
  }
  const names = [...total].sort((one, other) => other[1] - one[1]).map(([end]) => end);
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve-chart", role: "img", "aria-label": title });
  const shares = (point, name) => (point.ends[name] || 0) / Object.values(point.ends).reduce((sum, one) => sum + one, 0);
  const full = points.filter((point) => Object.keys(point.ends).length);
  const below = full.map(() => 0);
  const lines = names.map((name, number) => {
    const upper = full.map((point, at) => `${(WIDTH * hair.share(point.x)).toFixed(1)},${(HEIGHT * (1 - (below[at] + shares(point, name)))).toFixed(2)}`);
    const lower = full.map((point, at) => `${(WIDTH * hair.share(point.x)).toFixed(1)},${(HEIGHT * (1 - below[at])).toFixed(2)}`).reverse();
    full.forEach((point, at) => { below[at] += shares(point, name); });
    const colour = `end-${tone(name)} shade-${number % 3}`;
    chart.append(svg("polygon", { points: [...upper, ...lower].join(" "), class: `ends-part ${colour}` }));
    return { name: text(name), colour, points: full.map((point) => ({ x: point.x, y: shares(point, name), point })) };
  });
  const area = hair.area(chart, { lines, format: (share) => `${Math.round(100 * share)} %` });
  node.append(el("div", { class: "curve-box flush" }, area), el("div", { class: "curve-key" }, names.slice(0, 4).map((name, number) => el("span", { class: `key end-${tone(name)} shade-${number % 3}`, text: text(name) }))));
  return node;
}
