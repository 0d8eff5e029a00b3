// The tokens of one row. Tokens are made in chunks, and only chunks near the window hold elements.
import { appendText, el } from "./dom.js";
import { colourClass, tokenClass } from "./colours.js";
import { plural } from "./format.js";

const CHUNK_TOKENS = 160;
const LINE_HEIGHT = 24;
const CHARACTER_WIDTH = 7.6;
const FILL_MILLISECONDS = 3;
const CLAMP_LINES = 12; // context that is longer is shown in part until it is asked for

const chunkOfNode = new WeakMap();

/** Fills chunks that come near the window, a few in each frame, and empties those that leave it. */
export class ChunkWatcher {
  constructor() {
    this.waiting = new Map(); // chunks to fill, and how far they were from the window
    this.frame = 0;
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting, boundingClientRect: box } of entries) {
        const chunk = chunkOfNode.get(target);
        if (isIntersecting) this.waiting.set(chunk, Math.max(0, -box.bottom, box.top - innerHeight));
        else {
          this.waiting.delete(chunk);
          chunk.empty(box.height);
        }
      }
      this.fillSome();
    }, { rootMargin: "900px 0px" });
  }

  /** Fill the nearest chunks; what takes longer than a few milliseconds is left to the next frame. */
  fillSome() {
    this.frame = 0;
    const until = performance.now() + FILL_MILLISECONDS;
    for (const [chunk] of [...this.waiting].sort((one, other) => one[1] - other[1])) {
      chunk.fill();
      this.waiting.delete(chunk);
      if (performance.now() > until) break;
    }
    if (this.waiting.size && !this.frame) this.frame = requestAnimationFrame(() => this.fillSome());
  }

  watch(chunk) { this.observer.observe(chunk.node); }

  stop() {
    this.observer.disconnect();
    this.waiting.clear();
  }
}

export class TokenChunk {
  constructor(strip, from, to) {
    this.strip = strip;
    this.from = from;
    this.to = to;
    this.filled = false;
    this.node = el("div", { class: "chunk" });
    this.height = this.guess();
    this.node.style.minHeight = `${this.height}px`;
    chunkOfNode.set(this.node, this);
  }

  /** The height it will have, roughly. */
  guess() {
    const { episode, width } = this.strip;
    const { index, widths, breaks } = episode;
    const perLine = Math.max(20, Math.floor(width / CHARACTER_WIDTH));
    let lines = 1;
    let column = 0;
    for (let offset = this.from; offset < this.to; offset++) {
      column += widths[index[offset]] + 0.2;
      if (breaks[index[offset]]) {
        lines += 1 + Math.floor(column / perLine);
        column = 0;
      }
    }
    if (!column && lines > 1) lines--; // a line break at the end begins no line
    return Math.ceil(lines + column / perLine) * LINE_HEIGHT;
  }

  fill() {
    if (this.filled) return;
    this.filled = true;
    const { branch, mode, episode } = this.strip;
    const all = document.createDocumentFragment();
    for (let offset = this.from; offset < this.to; offset++) {
      const token = tokenNode(branch, offset, mode);
      all.append(token);
      if (mode === "drift") {
        const span = episode.driftAt.size && episode.drifted[offset] ? episode.driftSpan(offset) : null;
        if (span && offset === span.end - 1) all.append(becameNode(span.became));
        const rendered = episode.rendered.get(offset);
        if (rendered && rendered.last === offset) all.append(el("span", { class: "became rendered", title: "what rendering the messages again would have written here", text: rendered.text ? showSpace(rendered.text) : "nothing" }));
      }
      if (token.endsLine) all.append("\n");
    }
    this.node.replaceChildren(all);
    this.node.style.minHeight = "";
  }

  /** Drop the elements, but keep the height they had. */
  empty(height) {
    if (!this.filled || this.node.contains(document.activeElement)) return;
    this.filled = false;
    this.node.replaceChildren();
    this.node.style.minHeight = `${height}px`;
  }

  redraw() {
    if (!this.filled) return;
    this.filled = false;
    this.fill();
  }

  tokenAt(offset) {
    for (const node of this.node.children) if (node.tokenOffset === offset) return node;
    return null;
  }
}

/** All chunks of a row. */
export class TokenStrip {
  constructor(branch, row, mode, width, watcher) {
    this.branch = branch;
    this.episode = branch.episode;
    this.mode = mode;
    this.width = width;
    this.chunks = [];
    this.body = el("div", { class: "strip-body" });
    this.node = el("div", { class: `strip kind-${row.kind}` }, this.body);
    let from = row.from;
    while (from < row.to) {
      const to = this.cut(from, row.to);
      const chunk = new TokenChunk(this, from, to);
      this.chunks.push(chunk);
      this.body.append(chunk.node);
      watcher.watch(chunk);
      from = to;
    }
    if (row.kind === "context" && row.items.length && this.chunks.reduce((sum, chunk) => sum + chunk.height, 0) > CLAMP_LINES * LINE_HEIGHT * 1.25) this.clamp(row.to - row.from);
  }

  clamp(count) {
    this.node.classList.add("clamped");
    this.more = el("button", { type: "button", class: "more", text: `show all ${plural(count, "token")}`, on: { click: () => this.expand() } });
    this.node.append(this.more);
  }

  /** Show all tokens. */
  expand() {
    if (!this.more) return;
    this.node.classList.remove("clamped");
    this.more.remove();
    this.more = null;
  }

  /** Where a chunk ends: at a line break if there is one near. */
  cut(from, end) {
    const wanted = from + CHUNK_TOKENS;
    if (end - from <= CHUNK_TOKENS * 1.25) return end;
    for (let at = wanted; at > wanted - 60 && at > from; at--) {
      if (this.episode.breaks[this.episode.index[at - 1]] === 2) return at;
    }
    return Math.min(wanted, end);
  }

  /** Make the tokens of the first `pixels` of the row at once; return how many pixels are left. */
  fillFirst(pixels) {
    const end = this.more ? Math.max(0, pixels - CLAMP_LINES * LINE_HEIGHT) : 0; // what is left below a clamped row
    for (const chunk of this.chunks) {
      if (pixels <= end) break;
      chunk.fill();
      pixels -= chunk.height;
    }
    return Math.max(pixels, end);
  }

  colour(mode) {
    this.mode = mode;
    for (const chunk of this.chunks) chunk.redraw();
  }

  chunkWith(offset) {
    return this.chunks.find((chunk) => offset >= chunk.from && offset < chunk.to) || null;
  }

  /** Mark the tokens of a message, as far as they are in view. */
  highlight(from, to, on) {
    for (const chunk of this.chunks) {
      if (!chunk.filled || chunk.to <= from || chunk.from >= to) continue;
      for (const node of chunk.node.children) {
        if (node.tokenOffset >= from && node.tokenOffset < to) node.classList.toggle("hot", on);
      }
    }
  }
}

/** One token; a line break at its end is left to the caller (`endsLine`). */
export function tokenNode(branch, offset, mode) {
  const node = document.createElement("span");
  node.className = tokenClass(mode, branch, offset);
  node.tokenOffset = offset;
  const text = showSpace(branch.episode.text(offset));
  node.endsLine = text.endsWith("\n"); // the caller adds the break after the token, so that the token ends before it
  appendText(node, node.endsLine ? text.slice(0, -1) : text);
  return node;
}

export function showSpace(text) {
  return text.includes("\n") || text.includes("\t") ? text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t") : text;
}

function becameNode(became) {
  return el("span", { class: "became", title: "what encoding the text again would have made of it" },
    became.length ? became.map(({ text }) => el("i", { text: showSpace(text) })) : el("i", { text: "nothing" }));
}

const mapColours = new Map();

function colourOf(name, probe, theme) {
  const key = `${theme}/${name}`;
  if (!mapColours.has(key)) {
    probe.className = `t ${name}`;
    mapColours.set(key, getComputedStyle(probe).backgroundColor);
  }
  return mapColours.get(key);
}

/** Draw the whole branch as one line of colours. */
export function drawMap(canvas, branch, mode) {
  const width = Math.max(1, Math.floor(canvas.clientWidth * devicePixelRatio));
  const height = Math.max(1, Math.floor(canvas.clientHeight * devicePixelRatio));
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d");
  const probe = document.createElement("span");
  canvas.parentNode.append(probe);
  const theme = getComputedStyle(document.documentElement).getPropertyValue("color-scheme") + matchMedia("(prefers-color-scheme: dark)").matches;
  const { episode, length } = branch;
  for (let x = 0; x < width && length; x++) {
    const first = Math.floor((x * length) / width);
    const last = Math.max(first + 1, Math.floor(((x + 1) * length) / width));
    let chosen = branch.offset(first);
    let flaw = false;
    let drift = false;
    for (let position = first; position < Math.min(last, first + 64); position++) {
      const offset = branch.offset(position);
      if (episode.flaws.has(offset)) flaw = true;
      if (episode.drifted[offset]) drift = true;
      if (mode === "drift" && episode.drifted[offset]) chosen = offset;
      if (episode.origin[offset] === 2) chosen = offset;
    }
    pen.fillStyle = colourOf(colourClass(mode, branch, chosen), probe, theme);
    pen.fillRect(x, 0, 1, height);
    if (drift || flaw) {
      pen.fillStyle = colourOf(flaw ? "map-flaw" : "map-drift", probe, theme);
      pen.fillRect(x, flaw ? 0 : height - Math.max(2, height / 6), Math.max(1, flaw ? 2 : 1), flaw ? height : Math.max(2, height / 6));
    }
  }
  probe.remove();
}
