// One episode as the page works with it: flat arrays over all its tokens, and its branches. No elements here.

const CONTEXT = 0;
const SAMPLED = 1;
const CLOSING = 2;
export const ORIGIN_NAMES = ["context", "sampled", "closing"];
export const VIEW_FORMAT = 2;
const UNKNOWN_TEXT = "\u00a0\u00a0\u00a0"; // a token whose text is still loading is an empty box

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Bytes that are no whole character. */
function hexText(hex) {
  return `⟨${(hex.match(/../g) || []).join(" ")}⟩`;
}

/** Positions in these arrays are offsets: turns one after the other, each token once. */
export class EpisodeData {
  constructor(view) {
    if (view.format !== VIEW_FORMAT) throw new Error(`the page reads format ${VIEW_FORMAT}, got ${view.format}: reload it`);
    this.view = view;
    this.id = view.id;
    this.turns = view.turns;
    this.index = new Uint32Array(bytesOf(view.tokens).buffer);
    this.logprobs = new Float64Array(bytesOf(view.logprobs).buffer);
    const { ids, pieces, partial, special } = view.vocabulary;
    this.ids = new Int32Array(bytesOf(ids).buffer);
    this.pieces = pieces;
    this.partial = partial;
    this.special = new Set(special);
    const count = this.index.length;
    this.turnOf = new Int32Array(count);
    this.origin = new Uint8Array(count);
    this.version = new Int16Array(count).fill(-1);
    this.versionNames = [];
    this.drifted = new Uint8Array(count);
    this.driftAt = new Map(); // offset of a changed span to the span
    this.driftKnown = false;
    this.rendered = new Map(); // offset to what rendering the messages again would have written
    this.trainerRanges = new Map();
    this.trainer = new Map(); // name of a trainer's value to an array by offset; NaN where there is none
    this.flaws = new Map(); // offset to a finding of the proof
    this.suspects = new Set(); // offsets of tokens one of which was changed
    let sampledSoFar = 0;
    for (const turn of this.turns) {
      turn.size = turn.closing + turn.context + turn.sampled;
      turn.sampledAt = turn.at + turn.closing + turn.context;
      turn.end = turn.at + turn.size;
      turn.logprobAt = sampledSoFar;
      sampledSoFar += turn.sampled;
      this.turnOf.fill(turn.id, turn.at, turn.end);
      this.origin.fill(CLOSING, turn.at, turn.at + turn.closing);
      this.origin.fill(SAMPLED, turn.sampledAt, turn.end);
      for (const [name, start, end] of turn.versions) {
        let number = this.versionNames.indexOf(name);
        if (number < 0) number = this.versionNames.push(name) - 1;
        this.version.fill(number, turn.sampledAt + start, turn.sampledAt + end);
      }
      turn.drift = null; // unknown until `addDrift`
    }
    this.measurePieces();
    this.joined = this.joinPartial();
    this.speakers = new Map(view.other_models.filter((one) => one.text).map((one) => [one.text, one.name])); // what other models said
    this.toolsById = new Map(view.tools.map((tool) => [tool.id, tool]));
    this.severalAgents = new Set(view.turns.map((turn) => turn.detail.agent)).size > 1;
    this.trainedSomewhere = new Set(view.branches.flatMap((branch) => branch.trained));
    this.branches = view.branches.map((branch) => new Branch(this, branch));
  }

  /** Width in characters of every distinct token, and which end lines: layout is guessed for each token of an episode. */
  measurePieces() {
    const { pieces } = this;
    this.widths = new Uint16Array(pieces.length);
    this.breaks = new Uint8Array(pieces.length); // 1: has a line break; 2: ends with one
    pieces.forEach((piece, number) => {
      this.widths[number] = piece === null ? 6 : Math.min(piece.length, 65535);
      if (piece !== null && piece.includes("\n")) this.breaks[number] = piece.endsWith("\n") ? 2 : 1;
    });
  }

  /** Take what encoding the text again would have made of it; see `drift.py`. */
  addDrift({ turns, words }) {
    const wordOf = (id) => ({ id, text: typeof words[id] === "string" ? words[id] || `[${id}]` : hexText(words[id][0]) });
    for (const turn of this.turns) {
      turn.drift = turns[turn.id] || null;
      for (const [start, end, ids] of turn.drift || []) {
        const span = { start: turn.sampledAt + start, end: turn.sampledAt + end, became: ids.map(wordOf) };
        this.drifted.fill(1, span.start, span.end);
        this.driftAt.set(span.start, span);
      }
    }
    this.driftKnown = true;
  }

  /** Take what a trainer made of the sampled tokens: values by name, by turn. */
  addTrainer(values) {
    for (const name of Object.keys(values).sort((one, other) => placeOf(one) - placeOf(other) || (one < other ? -1 : 1))) {
      const flat = new Float64Array(this.index.length).fill(NaN);
      for (const [id, given] of Object.entries(values[name])) {
        const turn = this.turns[id];
        if (!turn || (Array.isArray(given) && given.length !== turn.sampled)) continue; // told by the proof
        for (let at = 0; at < turn.sampled; at++) {
          const value = Array.isArray(given) ? given[at] : given;
          if (typeof value === "number") flat[turn.sampledAt + at] = value;
        }
      }
      this.trainer.set(name, flat);
    }
  }

  /** A trainer's value for a token; null if it has none. */
  trainerValue(name, offset) {
    const values = this.trainer.get(name);
    return values === undefined || Number.isNaN(values[offset]) ? null : values[offset];
  }

  /** The lowest and the highest of a trainer's values; null if there is none. */
  trainerRange(name) {
    if (this.trainerRanges.has(name)) return this.trainerRanges.get(name);
    let range = null;
    for (const value of this.trainer.get(name) || []) if (!Number.isNaN(value)) range = range ? [Math.min(range[0], value), Math.max(range[1], value)] : [value, value];
    this.trainerRanges.set(name, range);
    return range;
  }

  /** Note a finding of the proof at the tokens that it is about; return the offset of the first, null if it names none. */
  addFlaw(finding) {
    const turn = finding.turn === null ? null : this.turns[finding.turn];
    const branch = turn && finding.token !== null ? this.branchWith(turn.id) : null;
    if (!branch || finding.token < 0 || finding.token >= turn.start + turn.size) return null;
    const offset = branch.offset(finding.token);
    this.flaws.set(offset, finding);
    if (finding.kind === "prompt") {
      const end = turn.start + turn.closing + turn.context;
      for (let position = finding.token; position < end; position++) this.suspects.add(branch.offset(position));
    }
    return offset;
  }

  /** The name of the agent that made a turn, where there are several; "" otherwise. */
  agentName(turn) {
    return this.severalAgents && turn.detail.agent ? turn.detail.agent : "";
  }

  get driftedTurns() {
    return this.turns.filter((turn) => turn.drift && turn.drift.length).length;
  }

  /** Tokens that hold a part of a character: the first shows the character, the others a dot. */
  joinPartial() {
    const joined = new Map();
    const parts = Object.keys(this.partial);
    if (!parts.length) return joined;
    const decoder = new TextDecoder("utf-8", { fatal: true });
    const bytes = new Array(this.pieces.length).fill(null);
    for (const number of parts) bytes[number] = this.partial[number].match(/../g).map((pair) => parseInt(pair, 16));
    let run = [];
    let data = [];
    const flush = () => {
      for (const offset of run) joined.set(offset, hexText(this.partial[this.index[offset]]));
      run = [];
      data = [];
    };
    for (let offset = 0; offset < this.index.length; offset++) {
      const own = bytes[this.index[offset]];
      if (!own) {
        if (run.length) flush();
        continue;
      }
      run.push(offset);
      data.push(...own);
      try {
        const text = decoder.decode(new Uint8Array(data));
        run.forEach((member, number) => joined.set(member, number ? "·" : text));
        run = [];
        data = [];
      } catch {
        if (run.length > 8) flush();
      }
    }
    flush();
    return joined;
  }

  tokenId(offset) { return this.ids[this.index[offset]]; }

  /** The text of a token as it is shown; ids in brackets if the tokenizer is unknown. */
  text(offset) {
    const joined = this.joined.get(offset);
    if (joined !== undefined) return joined;
    return this.wordText(this.index[offset]);
  }

  wordText(number) {
    const piece = this.pieces[number];
    if (this.view.loading) return UNKNOWN_TEXT;
    if (piece !== null && piece !== undefined && (piece !== "" || !this.view.decoded)) return piece;
    return this.partial[number] ? hexText(this.partial[number]) : `[${this.ids[number]}]`;
  }

  bytesText(offset) {
    const number = this.index[offset];
    if (this.partial[number]) return this.partial[number].match(/../g).join(" ");
    const piece = this.pieces[number];
    if (piece === null || piece === undefined) return "";
    return [...new TextEncoder().encode(piece)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }

  logprob(offset) {
    if (this.origin[offset] !== SAMPLED) return null;
    const turn = this.turns[this.turnOf[offset]];
    return this.logprobs[turn.logprobAt + offset - turn.sampledAt];
  }

  /** The changed span that a token belongs to; null if it would stay as it is. */
  driftSpan(offset) {
    if (!this.drifted[offset]) return null;
    for (let at = offset; at >= 0 && this.drifted[at]; at--) {
      const span = this.driftAt.get(at);
      if (span) return offset < span.end ? span : null;
    }
    return null;
  }

  mainBranch() {
    return this.branches.find((branch) => branch.main) || this.branches[0] || null;
  }

  branchOf(id) {
    return this.branches.find((branch) => branch.id === id) || null;
  }

  branchWith(turn) {
    return this.branches.find((branch) => branch.path.includes(turn)) || null;
  }
}

const TRAINER_ORDER = ["advantage", "logprob", "ratio", "entropy", "clip", "loss_mask"];

function placeOf(name) {
  return TRAINER_ORDER.includes(name) ? TRAINER_ORDER.indexOf(name) : TRAINER_ORDER.length;
}

export class Branch {
  constructor(episode, { id, path, trained, main, agent, exported }) {
    this.episode = episode;
    this.id = id;
    this.path = path;
    this.trained = new Set(trained);
    this.main = main;
    this.agent = agent;
    this.exported = exported;
    this.turns = path.map((id) => episode.turns[id]);
    const last = this.turns[this.turns.length - 1];
    this.length = last ? last.start + last.size : 0;
  }

  /** Offset in the episode's arrays of a position in this branch. */
  offset(position) {
    let low = 0;
    let high = this.turns.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.turns[middle].start <= position) low = middle;
      else high = middle - 1;
    }
    return this.turns[low].at + position - this.turns[low].start;
  }

  position(offset) {
    const turn = this.episode.turns[this.episode.turnOf[offset]];
    return turn.start + offset - turn.at;
  }

  has(offset) {
    return this.path.includes(this.episode.turnOf[offset]);
  }

  /** 1: trained here; 2: trained in another branch; 3: sampled, never trained; 0: not sampled. */
  loss(offset) {
    const { origin, turnOf, trainedSomewhere } = this.episode;
    if (origin[offset] !== SAMPLED) return 0;
    if (this.trained.has(turnOf[offset])) return 1;
    return trainedSomewhere.has(turnOf[offset]) ? 2 : 3;
  }

  /** What is shown, from top to bottom: {turn, kind, from, to, items}. */
  rows() {
    const rows = [];
    for (const turn of this.turns) {
      if (turn.closing) rows.push({ turn, kind: "closing", from: turn.at, to: turn.at + turn.closing, items: [] });
      for (const { span, items } of turn.rows) {
        const from = turn.at + Math.max(span[0], turn.closing);
        const to = turn.at + span[1];
        if (to > from || items.length) rows.push({ turn, kind: "context", from, to: Math.max(from, to), items });
      }
      rows.push({ turn, kind: "sampled", from: turn.sampledAt, to: turn.end, items: turn.reply });
    }
    return rows;
  }
}

/** Where two branches part: {same, left, right}, counted in positions; null if they are equal. */
export function partingPoint(left, right) {
  const most = Math.min(left.length, right.length);
  let position = 0;
  while (position < most && left.episode.tokenId(left.offset(position)) === right.episode.tokenId(right.offset(position))) position++;
  return position === left.length && position === right.length ? null : position;
}

export const TOKEN_ORIGIN = { CONTEXT, SAMPLED, CLOSING };
