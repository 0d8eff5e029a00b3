// The page: what is shown follows from the address; a click or a key changes the address.
import { byId, clear, el, every, toast } from "./dom.js";
import { plural } from "./format.js";
import { columnOf } from "./columns.js";
import { RowStore } from "./rows.js";
import { openSource } from "./source.js";
import { RunView } from "./run_view.js";
import { COLOUR_MODES, isMode } from "./colours.js";
import { EpisodeView } from "./episode_view.js";
import { GroupView } from "./group_view.js";
import { TaskView } from "./task_view.js";
import { drawHelp, listenForKeys, openHelp } from "./keys.js";
import { nextTheme, startTheme, themeSign } from "./theme.js";

const POLL_MILLISECONDS = 1500;

const source = openSource();
const store = new RowStore();
let about = {};
let runVerdict = null;
let cursor = null; // the chosen row of the table
let shown = { view: "run" };
let knownAddress = null; // the address that `shown` was read from or written to

const runView = new RunView(store, source, { changed: () => { writeAddress(); refresh(); }, open: (id) => openEpisode(id) });
const episodeView = new EpisodeView(source, {
  about: () => about,
  changed: () => writeAddress(),
  openGroup: (task) => openGroup(task),
  groupSize: (task) => store.group(task).length,
});
const groupView = new GroupView(store, source, { open: (id) => openEpisode(id), changed: () => writeAddress() });
const taskView = new TaskView({
  load: () => source.tasks(), changed: () => writeAddress(), group: (row) => `#g=${encodeURIComponent(row.task)}`, episode: ([, id]) => `#e=${encodeURIComponent(id)}`,
});
const side = el("aside", { class: "side-panel" }, runView.node);
const stage = el("div", { class: "stage" });

// --- the address ---

function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const { filters, sort } = store;
  for (const name of ["q", "end", "weights", "task", "failed"]) filters[name] = parameters.get(name) || "";
  filters.metric = columnOf(parameters.get("metric"))?.metric ? parameters.get("metric") : "reward";
  const range = [parameters.get("low"), parameters.get("high")].map((text) => (text === null || text === "" || Number.isNaN(Number(text)) ? null : Number(text)));
  [filters.low, filters.high] = range.includes(null) ? [null, null] : range;
  const order = parameters.get("sort") || "";
  Object.assign(sort, { key: order.replace(/^-/, ""), descending: order.startsWith("-") });
  const number = (name) => (/^\d+$/.test(parameters.get(name) || "") ? Number(parameters.get(name)) : undefined);
  if (parameters.get("e")) {
    shown = { view: "episode", id: parameters.get("e"), branch: number("b"), position: number("t"), mode: isMode(parameters.get("c")) ? parameters.get("c") : undefined };
  } else if (parameters.get("g")) {
    shown = { view: "group", task: parameters.get("g"), pair: [parameters.get("l"), parameters.get("r")].filter(Boolean) };
  } else if (parameters.has("tasks")) {
    shown = { view: "tasks" };
    taskView.read(parameters.get("tasks"));
  } else shown = { view: "run" };
}

function addressOf(target) {
  const parameters = new URLSearchParams();
  if (target.view === "episode") {
    parameters.set("e", target.id);
    const { episode, branch, selected, mode } = episodeView;
    if (episode && episode.id === target.id && branch) {
      if (branch !== episode.mainBranch()) parameters.set("b", branch.id);
      if (selected !== null) parameters.set("t", branch.position(selected));
    }
    if (mode !== "origin") parameters.set("c", mode);
  } else if (target.view === "group") {
    parameters.set("g", target.task);
    if (groupView.task === target.task && groupView.pair[0]) {
      parameters.set("l", groupView.pair[0]);
      parameters.set("r", groupView.pair[1]);
    }
  }
  if (target.view === "tasks") parameters.set("tasks", taskView.written());
  const { filters, sort } = store;
  for (const name of ["q", "end", "weights", "task", "failed"]) if (filters[name]) parameters.set(name, filters[name]);
  if (filters.metric !== "reward") parameters.set("metric", filters.metric);
  if (filters.low !== null) {
    parameters.set("low", filters.low);
    parameters.set("high", filters.high);
  }
  if (sort.key) parameters.set("sort", (sort.descending ? "-" : "") + sort.key);
  const text = parameters.toString();
  return text ? `#${text}` : "#";
}

/** Keep the address up to date without a step in the history. */
function writeAddress() {
  const wanted = addressOf(shown);
  if (wanted !== (location.hash || "#")) history.replaceState(null, "", wanted);
  knownAddress = location.hash;
}

/** Show another address; a browser may report one change twice. */
function addressChanged() {
  if (location.hash === knownAddress) return;
  knownAddress = location.hash;
  readAddress();
  show();
}

function navigate(target) {
  shown = target;
  history.pushState(null, "", addressOf(target));
  knownAddress = location.hash;
  show();
}

function openEpisode(id, want = {}) {
  performance.mark("episode-asked");
  cursor = id;
  navigate({ view: "episode", id, ...want });
}

function openGroup(task) {
  if (task !== undefined && task !== null) navigate({ view: "group", task });
}

function openRun() { navigate({ view: "run" }); }

function openTasks() { navigate({ view: "tasks" }); }

// --- drawing ---

function drawTop() {
  const name = (about.path || about.directory || "").split(/[\\/]/).filter(Boolean).pop() || "run";
  const badge = verdictBadge();
  const live = source.live && !about.sealed;
  const rows = store.byId.size;
  const back = shown.view === "run" ? null : el("button", { type: "button", class: "quiet back", title: "Back to the run (Esc)", "aria-label": "Back to all episodes", on: { click: openRun } }, "‹", el("span", { class: "hide-small", text: " all episodes" }));
  const inFolder = source.live && location.pathname !== "/";
  clear(byId("top")).append(
    ...(inFolder ? [el("a", { class: "quiet back", href: "/", title: "Back to all runs of the folder", "aria-label": "All runs" }, "‹", el("span", { class: "hide-small", text: " all runs" }))] : []),
    el("a", { class: "run-name", href: "#", title: about.path || "", text: name, on: { click: (event) => { event.preventDefault(); openRun(); } } }),
    badge, ...(back ? [back] : []),
    el("span", { class: "soft hide-small", text: source.live ? plural(rows, "episode") : `exported file, ${plural(rows, "episode")}` }),
    live ? el("span", { class: "live", title: "The run is being written, or was not sealed; the page follows it", text: store.complete ? "following" : "reading" }) : el("span", {}),
    shown.view === "tasks" ? el("span", {}) : el("button", { type: "button", class: `quiet${shown.view === "run" ? "" : " hide-small"}`, text: "by task", title: "Mean, spread, best and worst sample of each task (b)", on: { click: openTasks } }),
    el("span", { class: "grow" }),
    el("span", { class: "soft hide-small keys-hint" }, el("kbd", { text: "j" }), el("kbd", { text: "k" }), " next ", el("kbd", { text: "/" }), " search "),
    el("button", { type: "button", class: "quiet", text: themeSign(), title: "Light, dark or as the system (t)", "aria-label": "Change the theme", on: { click: changeTheme } }),
    el("button", { type: "button", class: "quiet", text: "?", title: "Keys (?)", "aria-label": "Keys", on: { click: openHelp } }));
  document.title = shown.view === "episode" ? `${shown.id} · ${name}` : shown.view === "group" ? `${shown.task} · ${name}` : name;
}

function verdictBadge() {
  if (!runVerdict) return el("span", { class: "badge tone-soft", text: "not proved yet" });
  const { certificate, running, error, outdated } = runVerdict;
  if (!certificate) return el("span", { class: "badge tone-soft", text: running ? "proving …" : "verdict unknown", title: error });
  const mixed = mixedParts(certificate).map(([part]) => part).join(", ");
  const verdict = mixed ? `${certificate.verdict}, mixed: ${mixed}` : certificate.verdict;
  const text = outdated || running ? `${verdict}, proving again …` : verdict;
  const words = [`root ${certificate.root}`, `seal: ${certificate.seal}`, `${plural(certificate.turns, "turn")}`, ...Object.entries(certificate.found).map(([kind, count]) => `${kind.replaceAll("_", " ")}: ${count}`)];
  return el("button", { type: "button", class: `badge verdict-${certificate.verdict}`, text, title: words.join("\n"), on: { click: showCertificate } });
}

/** The parts of the experiment of which episodes have several values: [part, {value: episodes}] each. */
function mixedParts(certificate) {
  return Object.entries(certificate.experiment).filter(([, values]) => Object.keys(values).length > 1);
}

function showCertificate() {
  const { certificate } = runVerdict;
  const line = (label, value) => [el("dt", { text: label }), el("dd", { text: value })];
  const counts = Object.entries(certificate.episodes).filter(([, count]) => count).map(([verdict, count]) => `${count} ${verdict}`).join(", ");
  const dialog = byId("help");
  clear(dialog).append(
    el("h2", { text: `Certificate: ${certificate.verdict}` }),
    el("dl", { class: "certificate" }, line("run", certificate.run || "unknown"), line("root", certificate.root), line("seal", certificate.seal), line("episodes", counts || "none"),
      mixedParts(certificate).map(([part, values]) => line(`mixed ${part}`, Object.entries(values).map(([value, count]) => `${value} (${plural(count, "episode")})`).join("; "))),
      line("turns", String(certificate.turns)), line("tokens", `${certificate.tokens.sampled} sampled, ${certificate.tokens.trained} trained`), line("files", String(certificate.files.length))),
    el("div", { class: "findings" }, certificate.findings.slice(0, 50).map((finding) => el("button", {
      type: "button", class: "note", disabled: !finding.episode, on: { click: () => { dialog.close(); openEpisode(finding.episode); } },
    }, el("b", { text: finding.kind.replaceAll("_", " ") }), el("span", { class: "soft", text: ` ${finding.episode || finding.file || ""} ` }), el("span", { text: finding.message })))),
    el("form", { method: "dialog" }, el("button", { class: "quiet", text: "close", autofocus: true })));
  dialog.showModal();
  dialog.addEventListener("close", () => drawHelp(), { once: true });
}

/** Show what the address names. */
function show() {
  const main = byId("main");
  main.className = `view-${shown.view}`;
  if (side.parentNode !== main) clear(main).append(side, stage);
  byId("card").hidden = true;
  if (shown.view === "episode") {
    cursor = shown.id;
    if (stage.firstChild !== episodeView.node) clear(stage).append(episodeView.node);
    const { id } = shown;
    episodeView.open(id, shown).then(() => {
      if (shown.id !== id) return;
      document.documentElement.dataset.episode = id;
      if (performance.getEntriesByName("episode-asked").length) performance.measure("episode-open", "episode-asked");
      performance.clearMarks("episode-asked");
      writeAddress();
    });
  } else if (shown.view === "group") {
    if (stage.firstChild !== groupView.node) clear(stage).append(groupView.node);
    groupView.show(shown.task, shown.pair);
    writeAddress();
  } else if (shown.view === "tasks") {
    if (stage.firstChild !== taskView.node) clear(stage).append(taskView.node);
    taskView.show().catch((error) => toast(error.message));
  } else clear(stage);
  refresh();
  if (shown.view !== "run") requestAnimationFrame(() => runView.table.reveal(cursor));
}

function refresh() {
  runView.update(cursor);
  drawTop();
}

function changeTheme() {
  nextTheme();
  drawTop();
  if (shown.view === "episode" && episodeView.branch) episodeView.drawModes();
}

// --- data ---

async function poll() {
  if (document.hidden) return;
  const changed = store.merge(await source.rows(store.version));
  if (!changed) return;
  about = await source.about();
  refresh();
  if (shown.view === "episode" && episodeView.episode) {
    const row = store.byId.get(shown.id);
    const known = episodeView.episode.view.row;
    if (row && known && row.events !== known.events) episodeView.open(shown.id, { fresh: true });
  } else if (shown.view === "group") groupView.show(shown.task, []);
  else if (shown.view === "tasks") await taskView.show();
}

async function pollVerdict() {
  const before = JSON.stringify(runVerdict);
  runVerdict = await source.runVerdict();
  if (JSON.stringify(runVerdict) !== before) drawTop();
}

function step(by) {
  const { rows } = runView;
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.id === cursor);
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))].id;
  if (shown.view === "run") {
    cursor = next;
    refresh();
    runView.table.reveal(cursor);
  } else if (next !== cursor || shown.view === "group") openEpisode(next);
}

const inEpisode = (run) => () => (shown.view === "episode" && episodeView.episode ? run() : false);

listenForKeys({
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => (shown.view === "run" ? step(1) : false),
  ArrowUp: () => (shown.view === "run" ? step(-1) : false),
  Enter: () => (shown.view === "run" && cursor ? openEpisode(cursor) : false),
  "/": () => { if (innerWidth < 760 && shown.view !== "run") openRun(); byId("search").focus(); byId("search").select(); },
  Escape: (event) => {
    byId("card").hidden = true;
    if (event.target.id === "search") event.target.blur();
    else if (shown.view !== "run") openRun();
    else return false;
  },
  "?": () => { drawHelp(); openHelp(); },
  t: changeTheme,
  b: openTasks,
  g: () => {
    const row = store.byId.get(cursor);
    if (row) openGroup(row.task_id);
  },
  n: inEpisode(() => episodeView.nextTurn(1)),
  p: inEpisode(() => episodeView.nextTurn(-1)),
  "]": inEpisode(() => episodeView.nextBranch(1)),
  "[": inEpisode(() => episodeView.nextBranch(-1)),
  ArrowRight: inEpisode(() => episodeView.moveToken(1)),
  ArrowLeft: inEpisode(() => episodeView.moveToken(-1)),
  7: inEpisode(() => episodeView.nextTrainer()),
  d: inEpisode(() => episodeView.nextDrift(1)),
  D: inEpisode(() => episodeView.nextDrift(-1)),
  f: inEpisode(() => (episodeView.verdict && episodeView.verdict.findings.length ? episodeView.goToFinding(episodeView.verdict.findings[0]) : toast("the proof has no finding"))),
  c: inEpisode(() => episodeView.copyJson()),
  x: inEpisode(() => episodeView.copyScript()),
  ...Object.fromEntries(COLOUR_MODES.map((mode, number) => [String(number + 1), inEpisode(() => { episodeView.colour(mode); writeAddress(); })])),
});

async function startPage() {
  startTheme();
  drawHelp();
  if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token is in a cookie now
  readAddress();
  try {
    const [loadedAbout, rows] = await Promise.all([source.about(), source.rows(0)]);
    about = loadedAbout;
    store.merge(rows);
  } catch (error) {
    clear(byId("main")).append(el("p", { class: "failure", text: `The run cannot be read: ${error.message}` }));
    return;
  }
  show();
  performance.mark("first-table");
  document.documentElement.dataset.ready = "1";
  if (store.filters.q) runView.fullText();
  knownAddress = location.hash;
  addEventListener("hashchange", addressChanged);
  addEventListener("popstate", addressChanged);
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting || shown.view !== "episode") return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; episodeView.scrolled(); });
  }, { passive: true });
  addEventListener("resize", refresh);
  addEventListener("resize", () => { if (shown.view === "episode" && episodeView.branch) episodeView.drawModes(); });
  await pollVerdict().catch(() => {});
  if (source.live) {
    every(POLL_MILLISECONDS, poll);
    every(2500, pollVerdict);
  }
}

startPage();
