// Keyboard navigation and its help.
import { byId, clear, el } from "./dom.js";

const KEY_HELP = [
  ["j  k", "next, previous episode"],
  ["Enter", "open the chosen episode"],
  ["/", "search"],
  ["Esc", "back to the run; leave the search"],
  ["1 … 6", "colour by origin, loss, logprob, weights, turn, drift"],
  ["7", "colour by what the trainer made of it: the next of its values"],
  ["n  p", "next, previous turn"],
  ["[  ]", "previous, next branch"],
  ["←  →", "previous, next token"],
  ["d  D", "next, previous place that would drift"],
  ["f", "first finding of the proof"],
  ["g", "samples of this task side by side"],
  ["b", "all tasks: mean, spread, best and worst sample"],
  ["c  x", "copy as JSON, as a Python script"],
  ["t", "light, dark or as the system"],
  ["?", "this help"],
];

export function drawHelp(keyHelp = KEY_HELP) {
  const help = byId("help");
  clear(help).append(
    el("h2", { text: "Keys" }),
    el("dl", { class: "keys" }, keyHelp.map(([keys, words]) => [el("dt", {}, keys.split("  ").map((key) => el("kbd", { text: key }))), el("dd", { text: words })])),
    el("form", { method: "dialog" }, el("button", { class: "quiet", text: "close", autofocus: true })));
}

export function openHelp() {
  if (!byId("help").open) byId("help").showModal();
}

/** Call the action of each key; keys typed into a field are left alone. */
export function listenForKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const field = event.target.closest("input, textarea, select");
    if (field && event.key !== "Escape") {
      if (event.key === "Enter" && field.type === "search") field.blur();
      return;
    }
    if (event.target.closest("button, summary, a") && (event.key === "Enter" || event.key === " ")) return;
    const action = actions[event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}
