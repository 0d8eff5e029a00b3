// Numbers, times and scripts as text.
import { el } from "./dom.js";

const wholeNumbers = new Intl.NumberFormat("en-US");

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Values come from a ledger that may be damaged: what is not a number is shown as it is, never an error.
const asItIs = (value) => (value === null || value === undefined ? "–" : String(value).slice(0, 40));

export function whole(number) {
  return isNumber(number) ? wholeNumbers.format(number) : asItIs(number);
}

export function plural(number, noun, several) {
  return `${whole(number)} ${number === 1 ? noun : several || noun + "s"}`;
}

/** A large number in few characters: 1.2 M. */
export function brief(number) {
  if (number < 10000) return whole(number);
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toPrecision(3).replace(/\.?0+$/, "")} ${letter}`;
  }
  return whole(number);
}

export function rewardText(value) {
  if (!isNumber(value)) return asItIs(value);
  return Math.abs(value) >= 1000 ? value.toPrecision(4) : value.toFixed(2);
}

/** A reward, coloured by its place between the lowest and the highest of the run: [low, high]. */
export function rewardMark(value, [low, high]) {
  const known = isNumber(value) && high > low;
  const mark = el("b", { class: `reward-mark${known ? " coloured" : ""}`, text: rewardText(value) });
  if (known) mark.style.setProperty("--share", `${Math.round((100 * (value - low)) / (high - low))}%`);
  return mark;
}

export function percent(part, total) {
  return total > 0 ? `${Math.round((100 * part) / total)} %` : "–";
}

export function secondsText(value) {
  if (!isNumber(value)) return asItIs(value);
  if (value < 0.0005) return "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function clockText(unix) {
  if (!isNumber(unix) || !unix || Math.abs(unix) > 8e12) return "–";
  const date = new Date(unix * 1000);
  return date.toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

export function endText(end) {
  return end === null || end === undefined ? "running" : String(end).replaceAll("_", " ");
}

/** How an end reason is coloured: "good", "warn", "bad" or "soft". */
export function endTone(end) {
  if (end === null || end === undefined) return "live";
  if (end === "answered" || end === "stopped") return "good";
  if (["engine_error", "tool_unavailable", "other_model_error", "agent_error"].includes(end)) return "bad";
  return end === "not_needed" || end === "paused" ? "soft" : "warn";
}

export function versionText(version) {
  return version === null || version === undefined ? "unknown" : String(version);
}

export function versionRange(versions) {
  if (!versions || !versions.length) return "–";
  const names = versions.map(versionText);
  return names.length === 1 ? names[0] : `${names[0]} → ${names[names.length - 1]}`;
}

/** Python that opens an episode; strings are written as JSON, which Python reads as the same string. */
export function reproductionScript(path, id, tokenizer) {
  const lines = [
    "# Opens one recorded episode; nothing is sampled.",
    "from strands_sglang.ledger import Ledger",
    "from strands_sglang.proof import verify",
    "",
    `directory = ${JSON.stringify(path)}`,
    `episode = ${JSON.stringify(id)}`,
    "",
    "print(verify(directory, episodes=[episode]).text())",
    "record = Ledger(directory).episode(episode)",
    "for turn in record.tree():",
    "    print(turn.id, turn.parent, len(turn.context), len(turn.sampled), turn.finish_reason)",
    "for trajectory in record.trajectories():",
    "    print(trajectory)",
  ];
  if (tokenizer) {
    lines.push(
      "",
      "from transformers import AutoTokenizer",
      "",
      `tokenizer = AutoTokenizer.from_pretrained(${JSON.stringify(tokenizer)})`,
      "for turn in record.tree():",
      "    print(repr(tokenizer.decode(turn.sampled)))",
    );
  }
  return lines.join("\n") + "\n";
}
