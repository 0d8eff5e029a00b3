// The messages of a row: text, reasoning, tool calls and their results, failed calls, and what was declared.
import { el } from "./dom.js";
import { plural, secondsText, versionRange, whole } from "./format.js";
import { imageUrl } from "./source.js";

export const asList = (value) => (Array.isArray(value) ? value : []);

const SHOWN_CHARACTERS = 1500;

export const itemNodes = new WeakMap();

/** A text that is shortened until it is asked for. */
export function longText(text, className) {
  const node = el("div", { class: className });
  const show = (all) => {
    const short = !all && text.length > SHOWN_CHARACTERS * 1.3;
    node.replaceChildren();
    const body = el("div", { class: "text", dir: "auto", text: short ? text.slice(0, SHOWN_CHARACTERS) : text });
    node.append(body);
    if (short) node.append(el("button", { type: "button", class: "more", text: `show all ${whole(text.length)} characters`, on: { click: () => show(true) } }));
  };
  show(false);
  return node;
}

function callArguments(item) {
  try {
    const given = JSON.parse(item.arguments);
    if (given && typeof given === "object" && !Array.isArray(given)) {
      return Object.entries(given).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ");
    }
  } catch { /* shown as it is */ }
  return item.arguments;
}

const ITEM_MAKERS = {
  text: (item) => longText(item.text, "said"),
  system: (item) => longText(item.text, "said"),
  reasoning: (item) => el("details", { class: "reasoning", open: item.text.length < 600 }, el("summary", { text: `reasoning, ${plural(item.text.length, "character")}` }), longText(item.text, "thought")),
  tools: (item) => el("details", { class: "tools" }, el("summary", { text: `tools: ${item.text}` }), longText(prettyJson(item.json), "code")),
  tool_use: (item) => el("div", { class: "call" }, el("b", { text: item.name }), el("span", { text: `(${callArguments(item)})` })),
  failed_call: (item) => el("div", { class: "call failed" },
    el("div", { class: "call-head" }, el("b", { text: "malformed call, not run" }), item.failure ? el("span", { class: "tag", text: item.failure }) : null),
    longText(item.text, "code"), el("div", { class: "why", text: item.error })),
  tool_result: (item, episode) => toolResult(item, episode.toolsById.get(item.id)),
  image: (item) => pictures(item),
  other: (item) => longText(item.text, "code"),
};

/** The images of an item, as the model saw them. */
function pictures(item) {
  return el("div", { class: "pictures" }, asList(item.images).map((digest) => {
    const url = imageUrl(digest);
    return url ? el("img", { src: url, alt: `image ${digest.slice(0, 12)}`, title: `sha256 ${digest}`, loading: "lazy" })
      : el("span", { class: "why", text: `image ${digest.slice(0, 12)} is not part of this file` });
  }));
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function toolResult(item, tool) {
  const wrong = item.status === "error";
  return el("div", { class: `result${wrong ? " failed" : ""}` }, item.text || !item.images ? longText(item.text, "said") : null,
    item.images ? pictures(item) : null,
    tool && tool.raised ? el("div", { class: "why", text: tool.raised + (tool.raised_at ? ` at ${tool.raised_at}` : "") }) : null,
    tool && tool.outcome === "timeout" ? el("div", { class: "why", text: `timed out after ${secondsText(tool.seconds)}` }) : null,
    tool && tool.outcome === "refused" ? el("div", { class: "why", text: "not run: the episode had reached its limit of tool calls" }) : null);
}

/** The line above a row: who, which turn, which weights, how long, and everything that was declared about it. */
export function rowHead(row, episode, branch) {
  const { turn, kind, items } = row;
  const first = items[0];
  const parts = [];
  const tags = [];
  if (kind === "sampled") {
    const agent = episode.agentName(turn);
    parts.push(agent ? `assistant ${agent}` : "assistant", `turn ${turn.id}`);
    if (turn.versions.length) parts.push(`weights ${versionRange(turn.versions.map((span) => span[0]))}`);
    if (typeof turn.detail.latency_ms === "number") parts.push(secondsText(turn.detail.latency_ms / 1000));
    parts.push(plural(turn.sampled, "token"));
    if (turn.finish_reason === "length") tags.push(["warn", "cut at its budget"]);
    else if (turn.finish_reason && turn.finish_reason !== "stop") tags.push(["bad", `finish: ${turn.finish_reason}`]);
    if (turn.rejected) tags.push(["warn", "discarded by the agent: not trained"]);
    if (turn.purpose !== "episode") tags.push(["soft", turn.purpose === "side" ? "side turn: not trained" : `${turn.purpose}: not trained`]);
    if (turn.detail.constrained) tags.push(["soft", `decoded under ${turn.detail.constrained}`]);
    if (turn.detail.continuations) tags.push(["soft", `continued ${plural(turn.detail.continuations, "time")}`]);
    if (turn.detail.discarded_tokens) tags.push(["warn", `${plural(turn.detail.discarded_tokens, "token")} discarded`]);
    for (const failure of asList(turn.detail.failed_calls)) tags.push(["bad", `malformed call: ${failure}`]);
    if (turn.requests > 1) tags.push(["soft", plural(turn.requests, "request")]);
    if (turn.drift && turn.drift.length) tags.push(["drift", `would drift in ${plural(turn.drift.length, "place")}`]);
  } else if (kind === "closing") {
    tags.push(["closing", `${turn.closing === 1 ? "closing token" : "closing tokens"} added and declared: not sampled, not trained`]);
  } else {
    const tool = first && first.kind === "tool_result" ? episode.toolsById.get(first.id) : null;
    parts.push(tool ? "tool" : !first ? "context" : first.kind === "tools" ? "tools" : first.role); // no system prompt: tools come first
    const speaker = items.map((item) => item.kind === "text" && episode.speakers.get(item.text.trim())).find(Boolean);
    if (speaker) tags.push(["soft", `said by the model ${speaker}`]);
    if (tool) parts.push(tool.name, secondsText(tool.seconds));
    if (!first) parts.push(plural(row.to - row.from, "token"));
  }
  if (kind === "context" && row.from === turn.at + turn.closing) {
    if (turn.join === "kept") tags.push(["closing", "history kept as sampled; the template would rewrite it"]);
    if (turn.join === "forked") tags.push(["accent", turn.parent === null ? "new branch: history was rewritten" : `fork after turn ${turn.parent}`]);
    if (turn.forked_from !== null) tags.push(["accent", `rewritten from turn ${turn.forked_from}`]);
    const changed = asList(turn.detail.echoes).filter((one) => one !== "exact");
    if (changed.length) tags.push(["closing", `the agent's copies of replies differ: ${changed.join(", ")}`]);
    const ignored = asList(turn.detail.ignored);
    if (ignored.length) tags.push(["warn", `not honoured, here and later: ${ignored.join(", ")}`]);
    if (turn.caller) tags.push(["accent", `started by turn ${turn.caller[0]}${turn.caller[1] ? `, call ${turn.caller[1]}` : ""}`]);
    const cached = turn.detail.cached_tokens;
    const sent = turn.start + turn.closing + turn.context;
    if (cached !== null && cached !== undefined && sent) parts.push(`${Math.round((100 * cached) / sent)} % of the prompt cached`);
  }
  return el("div", { class: "who" }, parts.length ? el("span", { text: parts.join(" · ") }) : null,
    tags.map(([tone, text]) => el("span", { class: `tag tone-text-${tone}`, text })));
}

/** The items of a row; `hover(item, on)` and `click(item)` link them to their tokens. */
export function rowItems(row, episode, { hover, click }) {
  const made = row.items.map((item) => {
    const node = el("div", { class: `item item-${item.kind}`, tabindex: item.span ? "0" : null, data: item.span ? { linked: "1" } : {} },
      (ITEM_MAKERS[item.kind] || ITEM_MAKERS.other)(item, episode));
    itemNodes.set(item, node);
    if (item.span) {
      node.addEventListener("mouseenter", () => hover(item, true));
      node.addEventListener("mouseleave", () => hover(item, false));
      node.addEventListener("click", (event) => {
        if (!event.target.closest("button, summary") && !String(getSelection())) click(item);
      });
      node.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === node) click(item); });
    }
    return node;
  });
  if (row.kind === "sampled" && !row.items.length && row.turn.sampled && episode.view.decoded) made.push(plainReply(row, episode));
  return made;
}

/** The text of a sampled turn whose message is not recorded, as in an episode that still runs. */
function plainReply(row, episode) {
  let text = "";
  for (let offset = row.from; offset < row.to && text.length < 4000; offset++) {
    const part = episode.text(offset);
    if (!episode.special.has(episode.index[offset])) text += part === "·" ? "" : part;
  }
  return longText(text, "said unrecorded");
}
