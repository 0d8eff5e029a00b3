// What the colour of a token means. One meaning at a time; every class is in style.css, for light and dark.
import { versionText } from "./format.js";
import { TOKEN_ORIGIN } from "./episode_data.js";

const LEVELS = 10;
const WEIGHT_COLOURS = 8;
const TURN_COLOURS = 6;

export const COLOUR_MODES = ["origin", "loss", "logprob", "weights", "turn", "drift"];

export const TRAINER_MODE = "trainer."; // before the name of a trainer's value

/** Whether an address may name this mode. */
export function isMode(mode) {
  return COLOUR_MODES.includes(mode) || (typeof mode === "string" && mode.startsWith(TRAINER_MODE));
}

/** The scales of a trainer's values: [first letter of the class, its number by value, legend]. */
const middle = (share) => Math.round(4 + 4 * Math.max(-1, Math.min(1, share)));
const SCALES = {
  advantage: ["v", (value) => middle(value / 2), [["v0", "−2 and below"], ["v4", "0"], ["v8", "2 and above"]]],
  ratio: ["v", (value) => middle(Math.log(Math.max(value, 1e-9)) / 0.2), [["v0", "below 0.82"], ["v4", "1"], ["v8", "above 1.22"]]],
  entropy: ["p", (value) => Math.min(LEVELS - 1, Math.max(0, Math.floor(value * 4))), [["p0", "0 nats"], ["p4", "1"], ["p8", "2 and above"]]],
  logprob: ["p", (value) => Math.min(LEVELS - 1, Math.floor((1 - Math.exp(Math.min(0, value))) * LEVELS)), [["p0", "p = 1"], ["p3", "0.7"], ["p6", "0.4"], ["p9", "p < 0.1"]]],
  clip: ["v", (value) => (value ? 0 : 4), [["v0", "clipped"], ["v4", "not clipped"]]],
  loss_mask: ["k", (value) => (value ? 1 : 3), [["k1", "trained"], ["k3", "sampled, not trained"]]],
};

/** Any other value: from the lowest to the highest of the episode. */
function scaleOf(name, episode) {
  if (Object.hasOwn(SCALES, name)) return SCALES[name];
  const known = episode.trainerRange(name);
  if (!known) return ["p", () => 0, []];
  const [low, high] = known;
  const level = (value) => Math.min(LEVELS - 1, Math.floor(((value - low) / (high - low || 1)) * LEVELS));
  return ["p", level, [["p0", String(Number(low.toPrecision(3)))], ["p9", String(Number(high.toPrecision(3)))]]];
}

function trainerClass(name, branch, offset) {
  const value = branch.episode.trainerValue(name, offset);
  if (value === null) return originClass(branch.episode, offset);
  const [letter, level] = scaleOf(name, branch.episode);
  return letter + level(value);
}

const classOf = (mode, branch, offset) => (MODE_CLASSES[mode] ? MODE_CLASSES[mode](branch, offset) : trainerClass(mode.slice(TRAINER_MODE.length), branch, offset));

const originClass = (episode, offset) => `o${episode.origin[offset]}`;

const MODE_CLASSES = {
  origin: (branch, offset) => originClass(branch.episode, offset),
  loss: (branch, offset) => {
    const loss = branch.loss(offset);
    return loss ? `k${loss}` : originClass(branch.episode, offset);
  },
  logprob: (branch, offset) => {
    const logprob = branch.episode.logprob(offset);
    if (logprob === null) return originClass(branch.episode, offset);
    return `p${Math.min(LEVELS - 1, Math.floor((1 - Math.exp(logprob)) * LEVELS))}`;
  },
  weights: (branch, offset) => {
    const version = branch.episode.version[offset];
    return version < 0 ? originClass(branch.episode, offset) : `w${version % WEIGHT_COLOURS}`;
  },
  turn: (branch, offset) => {
    const { episode } = branch;
    if (episode.origin[offset] !== TOKEN_ORIGIN.SAMPLED) return originClass(episode, offset);
    return `u${branch.path.indexOf(episode.turnOf[offset]) % TURN_COLOURS}`;
  },
  drift: (branch, offset) => {
    const { episode } = branch;
    if (episode.rendered.has(offset)) return "d2";
    if (episode.origin[offset] !== TOKEN_ORIGIN.SAMPLED) return originClass(episode, offset);
    return episode.drifted[offset] ? "d1" : "d0";
  },
};

/** The classes of a token in a mode. */
export function tokenClass(mode, branch, offset) {
  const { episode } = branch;
  let name = `t ${classOf(mode, branch, offset)}`;
  if (episode.drifted[offset] && mode !== "drift") name += " drift";
  if (episode.flaws.has(offset)) name += " flaw";
  else if (episode.suspects.has(offset)) name += " suspect";
  if (episode.special.has(episode.index[offset])) name += " special";
  return name;
}

export function colourClass(mode, branch, offset) {
  return classOf(mode, branch, offset);
}

/** What the colours mean: [class, words]. */
export function legendOf(mode, episode) {
  if (mode === "origin") return [["o1", "sampled"], ["o0", "context"], ["o2", "closing, added and declared"]];
  if (mode === "loss") return [["k1", "trained"], ["k2", "trained in another branch"], ["k3", "sampled, not trained"], ["o0", "context"]];
  if (mode === "logprob") return [["p0", "p = 1"], ["p3", "0.7"], ["p6", "0.4"], ["p9", "p < 0.1"], ["o0", "context"]];
  if (mode === "weights") {
    const names = episode.versionNames.slice(0, 12).map((name, number) => [`w${number % WEIGHT_COLOURS}`, versionText(name)]);
    return [...names, ["o0", "context"]];
  }
  if (mode.startsWith(TRAINER_MODE)) return [...scaleOf(mode.slice(TRAINER_MODE.length), episode)[2], ["o0", "no value"]];
  if (mode === "turn") return [["u0", "one colour per turn"], ["o0", "context"]];
  return [["d0", "would stay"], ["d1", "changes if text is encoded again"], ["d2", "changes if messages are rendered again"]];
}
