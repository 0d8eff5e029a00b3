// The page of a folder of runs: what is shown follows from the address.
import { byId, clear, el, every, toast } from "./dom.js";
import { plural } from "./format.js";
import { CompareView } from "./compare_view.js";
import { getJson } from "./source.js";
import { TaskView } from "./task_view.js";
import { runAddress, TrainingView } from "./training_view.js";
import { drawHelp, listenForKeys, openHelp } from "./keys.js";
import { nextTheme, startTheme, themeSign } from "./theme.js";

const POLL_MILLISECONDS = 1500;
const KEYS = [
  ["/", "search runs"], ["b", "tasks of the first training"], ["c", "compare two runs or trainings"], ["Esc", "back to the curves"],
  ["t", "light, dark or as the system"], ["?", "this help"],
];

let data = { version: -1, complete: false, runs: [], curves: {}, by: "step", asked: "" };
let shown = { view: "training" };
let of = ""; // the run or training whose tasks are shown

const training = new TrainingView({
  drifts: new Map(), changed: () => writeAddress(), open: (name) => { location.href = runAddress(name); },
  compare: (a, b) => { Object.assign(compare, { a, b, task: "", filter: "" }); navigate("compare"); },
  tasks: (name) => { of = name; navigate("tasks"); },
  drift: driftOf, failed: (error) => toast(error.message),
});
const compare = new CompareView({ names: () => comparable(), changed: () => writeAddress() });
const tasks = new TaskView({
  load: () => getJson(`api/tasks?of=${encodeURIComponent(of)}`), changed: () => writeAddress(),
  group: (task) => `${runAddress((task.best || [newestOf(of)])[0])}#g=${encodeURIComponent(task.task)}`,
  episode: ([run, id]) => `${runAddress(run)}#e=${encodeURIComponent(id)}`,
});
const taskChoice = el("select", { class: "quiet", "aria-label": "Run or training", on: { change: () => { of = taskChoice.value; writeAddress(); tasks.show().catch(failed); } } });

function failed(error) { toast(error.message); }

/** A name, and that of the evaluations within it if the run has some. */
function withEvaluation(run, name) { return run.evaluated ? [name, `${name} (eval)`] : [name]; }

/** Trainings first, then runs from the newest on, then the evaluations within them. */
function comparable() {
  const runs = [...data.runs].reverse();
  const names = [data.runs.filter((run) => run.training).map((run) => withEvaluation(run, run.training)), runs.map((run) => withEvaluation(run, run.name))].flat();
  return [...new Set([...names.map(([name]) => name), ...names.flatMap(([, evaluation]) => evaluation || [])])];
}

function newestOf(name) {
  const found = data.runs.filter((run) => [...withEvaluation(run, run.name), ...withEvaluation(run, run.training)].includes(name));
  return found.length ? found[found.length - 1].name : "";
}

/** The share of turns of one episode of a run whose tokens encoding again would change; null if it is unknown. */
async function driftOf(run) {
  const base = `run/${encodeURIComponent(run)}/api/`;
  const { rows } = await getJson(`${base}rows?since=0`);
  const row = rows.find((one) => one.end_reason !== null && one.sampled_tokens);
  if (!row) return null;
  const spans = Object.values((await getJson(`${base}drift?id=${encodeURIComponent(row.id)}`)).turns);
  return spans.length ? spans.filter((turn) => turn.length).length / spans.length : null; // none: without a tokenizer
}

// --- the address ---

function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const page = parameters.get("p");
  shown = { view: page === "tasks" || page === "compare" ? page : "training" };
  training.by = ["step", "weights"].includes(parameters.get("by")) ? parameters.get("by") : "";
  training.hidden = parameters.has("hide") ? new Set(parameters.getAll("hide").map((name) => name.slice(1))) : null;
  training.smooth = ["1", "5", "15", "50"].includes(parameters.get("mean")) ? parameters.get("mean") : "auto";
  const order = parameters.get("sort") || "";
  training.sort = { key: order.replace(/^-/, ""), descending: order.startsWith("-") };
  of = parameters.get("of") || of;
  tasks.read(parameters.get("tasks") || "");
  compare.read(parameters);
}

function address() {
  const parameters = new URLSearchParams();
  if (shown.view !== "training") parameters.set("p", shown.view);
  if (shown.view === "tasks") {
    parameters.set("of", of);
    parameters.set("tasks", tasks.written());
  }
  if (shown.view === "compare") compare.write(parameters);
  if (training.by) parameters.set("by", training.by);
  if (training.hidden !== null) for (const name of training.hidden.size ? training.hidden : ["-"]) parameters.append("hide", `.${name}`); // "-": none is
  if (training.smooth !== "auto") parameters.set("mean", training.smooth);
  if (training.sort.key) parameters.set("sort", (training.sort.descending ? "-" : "") + training.sort.key);
  return `#${parameters}`;
}

function writeAddress() { history.replaceState(null, "", location.pathname + address()); }

function navigate(view) {
  shown = { view };
  history.pushState(null, "", location.pathname + address());
  show();
}

// --- drawing ---

function drawTop() {
  const live = data.runs.some((run) => run.live);
  clear(byId("top")).append(
    el("a", { class: "run-name", href: "#", title: data.path || "", text: data.name || "runs", on: { click: (event) => { event.preventDefault(); navigate("training"); } } }),
    shown.view === "training" ? el("span", {}) : el("button", { type: "button", class: "quiet back", "aria-label": "Back to the curves", title: "Back to the curves (Esc)", on: { click: () => navigate("training") } }, "‹", el("span", { class: "hide-small", text: " curves" })),
    el("span", { class: "soft hide-small", text: plural(data.runs.length, "run") }),
    live || !data.complete ? el("span", { class: "live", text: data.complete ? "following" : "reading", title: "Runs are being written or read; the page follows them" }) : el("span", {}),
    el("span", { class: "grow" }),
    el("button", { type: "button", class: "quiet", text: themeSign(), title: "Light, dark or as the system (t)", "aria-label": "Change the theme", on: { click: changeTheme } }),
    el("button", { type: "button", class: "quiet", text: "?", title: "Keys (?)", "aria-label": "Keys", on: { click: openHelp } }));
  document.title = `${shown.view === "training" ? "" : `${shown.view} · `}${data.name || "runs"}`;
}

function changeTheme() {
  nextTheme();
  drawTop();
}

function show() {
  const main = byId("main");
  byId("card").hidden = true;
  main.className = `view-${shown.view}`;
  const node = { training: training.node, tasks: tasks.node, compare: compare.node }[shown.view];
  if (main.firstChild !== node) clear(main).append(node);
  drawTop();
  if (shown.view === "training") training.update(data);
  else if (shown.view === "compare") compare.show().then(() => writeAddress());
  else {
    const names = comparable();
    if (!names.includes(of)) of = names[0] || "";
    clear(taskChoice).append(...names.map((name) => el("option", { value: name, selected: name === of, text: name })));
    const title = tasks.node.querySelector(".title-line");
    if (!taskChoice.isConnected) title.append(taskChoice);
    tasks.show().then(() => writeAddress()).catch(failed);
  }
}

// --- data ---

async function poll() {
  if (document.hidden) return;
  const asked = training.by;
  const found = await getJson(`api/training?by=${asked}&since=${asked === data.asked ? data.version : -1}`);
  const changed = found.runs !== undefined;
  if (!changed && found.complete === data.complete) return;
  data = { ...data, ...found, asked };
  if (shown.view === "training" || changed) show();
}

/** Prove the runs in view, one after the other. */
async function proveNext() {
  if (document.hidden || shown.view !== "training" || !data.complete) return;
  const inView = [...training.table.body.querySelectorAll(".table-row")].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  }).map((node) => node.dataset.id);
  const next = inView.map((id) => data.runs.find((run) => run.name === id)).find((run) => run && !run.live && run.figures && (training.verdicts.get(run.name) || {}).of !== run.changed);
  if (!next) return;
  const found = await getJson(`api/proved?name=${encodeURIComponent(next.name)}`);
  training.verdicts.set(next.name, { ...found, of: found.running ? null : next.changed });
  if (!found.running) training.table.update(training.rows, null, training.sort);
}

listenForKeys({
  "/": () => { if (shown.view === "training") { byId("search").focus(); byId("search").select(); } else return false; },
  b: () => training.tasks(training.drawn[0] || ""),
  c: () => navigate("compare"),
  t: changeTheme,
  "?": openHelp,
  Escape: (event) => {
    if (event.target.id === "search") event.target.blur();
    else if (shown.view !== "training") navigate("training");
    else return false;
  },
});

async function startPage() {
  startTheme();
  drawHelp(KEYS);
  if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token is in a cookie now
  readAddress();
  await poll();
  document.documentElement.dataset.ready = "true";
  addEventListener("popstate", () => { readAddress(); if (training.by !== data.asked) poll().catch(failed); show(); });
  const { changed } = training;
  training.changed = () => { changed(); if (training.by !== data.asked) poll().catch(failed); };
  every(POLL_MILLISECONDS, poll);
  every(700, proveNext);
}

startPage().catch((error) => clear(byId("main")).append(el("p", { class: "failure", text: error.message })));
