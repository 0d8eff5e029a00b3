// One episode: messages beside tokens, the tree, the time line, the verdict.
import { byId, clear, copyText, el, toast } from "./dom.js";
import { clockText, endText, endTone, percent, plural, reproductionScript, rewardText, secondsText, versionRange, versionText, whole } from "./format.js";
import { COLOUR_MODES, TRAINER_MODE, isMode, legendOf } from "./colours.js";
import { EpisodeData, ORIGIN_NAMES, TOKEN_ORIGIN } from "./episode_data.js";
import { ChunkWatcher, TokenStrip, drawMap, showSpace } from "./token_strip.js";
import { asList, itemNodes, longText, rowHead, rowItems } from "./messages.js";
import { timeChart, treeChart } from "./tree.js";

const SCROLL_MILLISECONDS = 120;

export class EpisodeView {
  /** `changed()` is called when what a link should point to changes. */
  constructor(source, { about, changed, openGroup, groupSize }) {
    this.source = source;
    this.about = about;
    this.changed = changed;
    this.openGroup = openGroup;
    this.groupSize = groupSize;
    this.node = el("section", { class: "episode", "aria-label": "Episode" });
    this.episode = null;
    this.branch = null;
    this.mode = "origin";
    this.selected = null; // offset of a token
    this.rows = [];
    this.verdict = null;
    this.loading = null;
    this.watcher = null;
    this.scrolledAt = -Infinity;
    this.hoverTimer = 0;
    this.node.addEventListener("mouseover", (event) => this.hovered(event));
    this.node.addEventListener("mouseout", (event) => { if (event.target.tokenOffset !== undefined || event.target.closest(".t")) this.hideCard(); });
    this.node.addEventListener("click", (event) => {
      const token = tokenOf(event.target);
      if (token) this.select(token.tokenOffset, { scroll: false });
    });
  }

  /** Show an episode; `want` may name branch, token position and colour. */
  async open(id, want = {}) {
    if (want.mode && isMode(want.mode)) this.mode = want.mode;
    const shown = this.episode && this.episode.id === id;
    if (shown && !want.fresh && this.loading.episode === id) { // the rest of it may still be loading
      this.goTo(want);
      return;
    }
    if (this.loading) this.loading.abort();
    const loading = (this.loading = new AbortController());
    loading.episode = id;
    if (!shown) clear(this.node).append(el("p", { class: "loading", text: "Reading the episode …" }));
    let view;
    try {
      view = await this.source.episode(id, loading.signal, Boolean(want.wait));
    } catch (error) {
      if (error.name === "AbortError" || this.loading !== loading) return;
      const note = this.node.querySelector(".loading-tokenizer");
      if (shown && note) { // what is shown stays
        note.textContent = `Tokens are shown as ids: ${error.message}`;
        return;
      }
      this.episode = null;
      clear(this.node).append(el("p", { class: "failure", text: error.message }));
      return;
    }
    if (this.loading !== loading) return;
    const place = want.fresh && this.episode ? this.place() : null;
    this.verdict = null;
    this.selected = null;
    try {
      this.episode = new EpisodeData(view);
      this.branch = (want.branch !== undefined && this.episode.branchOf(want.branch)) || (place && this.episode.branchOf(place.branch)) || this.episode.mainBranch();
      this.draw();
    } catch (error) { // a record of another form
      this.episode = null;
      clear(this.node).append(el("p", { class: "failure", text: `This episode cannot be shown: ${error.message}` }));
      return;
    }
    if (place) this.goBackTo(place);
    else if (want.position === undefined) scrollTo(0, 0);
    this.goTo(want);
    afterPaint(() => this.loadRest(id, loading.signal));
  }

  /** Load what the first look does not need: the texts of tokens if the tokenizer was loading, the verdict, drift. */
  async loadRest(id, signal) {
    const current = () => !signal.aborted && this.episode && this.episode.id === id;
    if (!current()) return;
    await this.loadVerdict(id, current);
    if (current() && this.episode.view.loading) {
      await this.open(id, { fresh: true, wait: true });
      return;
    }
    if (!current()) return;
    this.loadTrainer(id, signal, current); // beside drift, which takes longer
    if (!this.episode.view.decoded) return;
    try {
      const drift = await this.source.drift(id, signal);
      if (current()) this.showDrift(drift);
    } catch (error) {
      if (error.name !== "AbortError" && current()) this.driftFact.replaceChildren("would drift ", el("b", { text: "unknown", title: error.message }));
    }
  }

  /** Load what a trainer made of the tokens, if anything. */
  async loadTrainer(id, signal, current) {
    try {
      const values = await this.source.trainer(id, signal);
      if (!current() || !Object.keys(values).length) return;
      this.episode.addTrainer(values);
      if (this.mode.startsWith(TRAINER_MODE)) this.colour(this.mode);
      else this.drawModes();
    } catch (error) {
      if (error.name !== "AbortError" && current()) toast(`the trainer's values cannot be read: ${error.message}`);
    }
  }

  /** Colour by the next of the trainer's values. */
  nextTrainer() {
    const names = [...this.episode.trainer.keys()];
    if (!names.length) {
      toast("no trainer has written values for this episode");
      return;
    }
    this.colour(TRAINER_MODE + names[(names.indexOf(this.mode.slice(TRAINER_MODE.length)) + 1) % names.length]);
    this.changed();
  }

  /** The choice of a trainer's value; null if there is none. */
  trainerChoice() {
    const names = [...this.episode.trainer.keys()];
    if (!names.length) return null;
    const chosen = this.mode.startsWith(TRAINER_MODE);
    return el("select", { class: `quiet trainer-choice${chosen ? " on" : ""}`, "aria-label": "Colour by what the trainer made of it", title: "What the trainer made of it (7)",
      on: { change: (event) => { this.colour(event.target.value || "origin"); this.changed(); } } },
    el("option", { value: "", text: "trainer …" }), names.map((name) => el("option", { value: TRAINER_MODE + name, selected: this.mode === TRAINER_MODE + name, text: name.replaceAll("_", " ") })));
  }

  /** Where the reader is: branch, chosen token, and the row at the top of the window. */
  place() {
    const top = this.barHeight();
    const number = scrollY > 0 ? this.rows.findIndex((row) => row.node.getBoundingClientRect().bottom > top) : -1;
    const row = this.rows[number];
    const chosen = this.node.querySelector(".t.chosen");
    const box = chosen && chosen.getBoundingClientRect();
    return {
      branch: this.branch && this.branch.id, scroll: scrollY, selected: this.selected, seen: Boolean(box && box.bottom > top && box.top < innerHeight),
      turn: row && row.turn.id, kind: row && row.kind, top: row && row.node.getBoundingClientRect().top,
    };
  }

  goBackTo({ scroll, selected, seen, turn, kind, top }) {
    const row = this.rows.find((one) => one.turn.id === turn && one.kind === kind);
    scrollTo(0, scroll);
    if (row) scrollBy(0, row.node.getBoundingClientRect().top - top);
    if (selected === null || selected >= this.episode.index.length) return;
    if (seen) this.select(selected, { scroll: true });
    else this.selected = selected;
  }

  showDrift(drift) {
    this.episode.addDrift(drift);
    this.drawDriftFact();
    for (const row of this.rows) {
      if (row.kind !== "sampled" || !row.turn.drift || !row.turn.drift.length) continue;
      const head = rowHead(row, this.episode, this.branch);
      row.head.replaceWith(head);
      row.head = head;
    }
    if (this.episode.driftAt.size || this.mode === "drift") this.colour(this.mode);
  }

  goTo({ branch: id, position, mode }) {
    const branch = id === undefined ? null : this.episode.branchOf(id);
    if (branch && branch !== this.branch) this.chooseBranch(branch);
    if (mode && isMode(mode) && mode !== this.drawnMode) this.colour(mode);
    if (position !== undefined && this.branch && position < this.branch.length) this.select(this.branch.offset(position), { scroll: true });
  }

  async loadVerdict(id, current) {
    try {
      const verdict = await this.source.verdict(id);
      if (!current()) return;
      this.verdict = verdict;
      for (const finding of verdict.findings) this.episode.addFlaw(finding);
      this.drawVerdict();
      if (this.episode.flaws.size) this.colour(this.mode);
    } catch (error) {
      if (current()) this.verdictNode.replaceChildren(el("span", { class: "badge tone-soft", text: "verdict unknown", title: error.message }));
    }
  }

  // --- drawing ---

  draw() {
    const { episode } = this;
    const { view } = episode;
    const row = view.row || {};
    const task = view.task || {};
    const prompt = typeof task.prompt === "string" ? task.prompt : row.prompt || "";
    this.verdictNode = el("span", { class: "verdict" }, el("span", { class: "badge tone-soft", text: "proving …" }));
    const samples = this.groupSize(row.task_id);
    const action = (label, title, run) => el("button", { type: "button", class: "quiet", text: label, title, on: { click: run } });
    const head = el("div", { class: "episode-head" },
      el("div", { class: "title-line" }, el("h1", { text: episode.id }), this.verdictNode, el("span", { class: "grow" }), el("div", { class: "actions" },
        samples > 1 ? action(`compare ${samples} samples`, "Show the samples of this task side by side (g)", () => this.openGroup(row.task_id)) : null,
        action("copy JSON", "Copy trajectories, messages and metrics (c)", () => this.copyJson()),
        action("copy script", "Copy Python that opens this episode (x)", () => this.copyScript()))),
      prompt ? longText(prompt, "task-prompt") : null,
      this.facts(),
      this.problems());
    this.findings = el("div", { class: "findings" });
    this.modeBar = el("div", { class: "modes", role: "toolbar", "aria-label": "What colours mean" });
    this.legend = el("div", { class: "legend" });
    this.trainerBar = el("div", { class: "trainer-bar" });
    this.map = el("canvas", { class: "map", "aria-hidden": "true", on: { click: (event) => this.mapClicked(event) } });
    this.mapView = el("i", { class: "map-view" });
    this.shape = el("details", { class: "shape", open: episode.branches.length > 1, hidden: !episode.branches.length });
    this.bar = el("div", { class: "episode-bar", hidden: !episode.branches.length }, el("div", { class: "mode-line" }, this.modeBar, this.trainerBar, this.legend), el("div", { class: "map-box" }, this.map, this.mapView));
    this.list = el("div", { class: "pairs" });
    this.after = el("div", { class: "after" });
    clear(this.node).append(head, this.findings, this.shape, el("details", { class: "shape", open: true }, el("summary", { text: "Time" }), timeChart(episode, (turn) => this.goToTurn(turn))), this.bar, this.list, this.after);
    this.drawShape();
    this.drawRows();
    this.drawAfter();
  }

  facts() {
    const { view } = this.episode;
    const { metrics } = view;
    const row = view.row || {};
    const facts = [];
    const fact = (label, value, tone, title) => facts.push(el("span", { title }, `${label} `, el("b", { class: tone ? `tone-text-${tone}` : "", text: value })));
    fact("reward", rewardText(view.reward ? view.reward.value : null));
    fact("ended", view.end ? endText(view.end.end_reason) : "running", endTone(view.end ? view.end.end_reason : null), view.end && view.end.time ? clockText(view.end.time) : null);
    fact("turns", whole(this.episode.turns.length));
    fact("tokens", whole(this.episode.index.length));
    fact("sampled", whole(this.episode.logprobs.length));
    fact("cached", percent(row.cached_tokens || 0, row.prompt_tokens || 0));
    fact("weights", versionRange(this.episode.versionNames));
    if (metrics.seconds) fact("time", secondsText(metrics.seconds));
    if (view.tools.length) fact("tools", `${plural(view.tools.length, "call")}`);
    if (view.other_models.length) fact("other models", plural(view.other_models.length, "answer"));
    if (view.epoch) fact("resumed", plural(view.epoch, "time"));
    if (row.experiment) fact("experiment", row.experiment, null, [view.fingerprint, ...view.earlier_fingerprints].flatMap(Object.entries).map(([part, value]) => `${part}: ${value}`).join("\n"));
    this.driftFact = el("span", { title: "Turns whose text, encoded again, gives other tokens" });
    this.drawDriftFact();
    return el("div", { class: "facts" }, facts, view.decoded && this.episode.turns.length ? this.driftFact : null);
  }

  drawDriftFact() {
    const { driftKnown, driftedTurns, turns } = this.episode;
    const sampled = turns.filter((turn) => turn.sampled).length;
    const text = driftKnown ? `${driftedTurns} of ${plural(sampled, "turn")}` : "…";
    this.driftFact.replaceChildren("would drift ", el("b", { class: driftedTurns ? "tone-text-drift" : "", text }));
  }

  problems() {
    const { view } = this.episode;
    const notes = [];
    if (view.end && view.end.failure) {
      const { kind, message, where } = view.end.failure;
      notes.push(el("details", { class: "note bad", open: true }, el("summary", { text: `${kind}: ${message}` }), where ? longText(where, "code") : null));
    }
    for (const [name, title] of [["output", "output"], ["error_output", "error output"]]) {
      if (view.end && view.end[name]) {
        notes.push(el("details", { class: "note" }, el("summary", { text: `${title} of the agent's process` }), longText(view.end[name], "code")));
      }
    }
    for (const problem of view.problems) notes.push(el("div", { class: "note bad", text: problem }));
    if (view.reward && view.reward.error) notes.push(el("div", { class: "note bad", text: `the reward failed: ${view.reward.error}` }));
    if (view.loading) notes.push(el("div", { class: "note loading-tokenizer", role: "status", text: "Loading the tokenizer: the texts of tokens follow." }));
    else if (view.tokenizer_error) notes.push(el("div", { class: "note warn", text: `Tokens are shown as ids: ${view.tokenizer_error}. Start the viewer with --tokenizer NAME to use another tokenizer.` }));
    else if (!view.decoded) notes.push(el("div", { class: "note", text: "The tokenizer is unknown: tokens are shown as ids. Start the viewer with --tokenizer NAME to see text and drift." }));
    return notes.length ? el("div", { class: "notes" }, notes) : null;
  }

  drawVerdict() {
    const { verdict, findings } = this.verdict;
    this.verdictNode.replaceChildren(el("span", { class: `badge verdict-${verdict}`, text: verdict, title: VERDICT_WORDS[verdict] }));
    clear(this.findings).append(...findings.map((finding) => {
      const place = [finding.event !== null ? `event ${finding.event}` : "", finding.turn !== null ? `turn ${finding.turn}` : "", finding.token !== null ? `token ${finding.token}` : ""].filter(Boolean).join(", ");
      return el("button", { type: "button", class: `note ${verdict === "broken" ? "bad" : ""}`, on: { click: () => this.goToFinding(finding) } },
        el("b", { text: finding.kind.replaceAll("_", " ") }), el("span", { class: "soft", text: ` ${place} ` }), el("span", { text: finding.message }));
    }));
  }

  drawShape() {
    const { episode, branch } = this;
    const count = episode.branches.length;
    clear(this.shape).append(
      el("summary", { text: count === 1 ? "One branch" : `${plural(count, "branch", "branches")}, ${plural(episode.turns.length, "turn")}` }),
      treeChart(episode, branch, (chosen, turn) => {
        this.chooseBranch(chosen.path.includes(turn ? turn.id : chosen.id) ? chosen : episode.branchWith(turn.id));
        if (turn) this.goToTurn(turn);
      }));
  }

  drawRows() {
    const { episode, branch } = this;
    if (this.watcher) this.watcher.stop();
    this.watcher = new ChunkWatcher();
    this.rows = [];
    clear(this.list);
    if (!branch) {
      this.list.append(el("p", { class: "empty", text: "This episode has no turns." }));
      return;
    }
    const width = Math.max(240, innerWidth < 760 ? innerWidth - 32 : (this.node.clientWidth || 900) * 0.58);
    const all = document.createDocumentFragment();
    for (const row of branch.rows()) {
      const strip = new TokenStrip(branch, row, this.mode, width, this.watcher);
      const links = {
        hover: (item, on) => strip.highlight(row.turn.at + item.span[0], row.turn.at + item.span[1], on),
        click: (item) => this.select(row.turn.at + item.span[0], { scroll: true }),
      };
      const head = rowHead(row, episode, branch);
      const message = el("div", { class: "message" }, el("div", { class: "message-inner" }, head, rowItems(row, episode, links)));
      const node = el("article", { class: `pair pair-${row.kind}${row.turn.rejected ? " pair-rejected" : ""}`, data: { turn: row.turn.id } }, message, strip.node);
      this.rows.push({ ...row, strip, node, head });
      all.append(node);
    }
    let pixels = innerHeight; // tokens of the first window are made at once, all others when they come near it
    for (const { strip } of this.rows) if (pixels > 0) pixels = strip.fillFirst(pixels);
    this.list.append(all);
    this.drawModes();
    this.drawnMode = this.mode;
  }

  drawModes() {
    if (!this.branch) return;
    const { episode, mode } = this;
    clear(this.modeBar).append(...COLOUR_MODES.map((name, number) => el("button", {
      type: "button", class: name === mode ? "on" : "", "aria-pressed": String(name === mode), text: name, data: { mode: name }, title: `Colour by ${name} (${number + 1})`, on: { click: () => { this.colour(name); this.changed(); } },
    })));
    const choice = this.trainerChoice();
    clear(this.trainerBar).append(...(choice ? [choice] : []));
    this.trainerBar.hidden = !choice;
    clear(this.legend).append(...legendOf(mode, episode).map(([name, words]) => el("span", {}, el("i", { class: `t ${name}`, text: " " }), words)));
    if (mode === "drift") {
      const places = [...episode.driftAt.values()].filter((span) => this.branch.has(span.start)).length;
      this.legend.append(el("span", { class: "soft", text: !episode.view.decoded ? "unknown without a tokenizer" : episode.driftKnown ? `${plural(places, "place")} in this branch` : "encoding the text again …" }),
        el("button", { type: "button", class: "quiet", text: "render messages again", title: "Compare with one rendering of the chat template", on: { click: () => this.loadRendered() } }));
    }
    requestAnimationFrame(() => { drawMap(this.map, this.branch, this.mode); this.scrolled(); });
  }

  drawAfter() {
    const { view } = this.episode;
    const parts = [];
    if (view.reward && (Object.keys(view.reward.parts || {}).length || asList(view.reward.steps).length)) {
      const rows = Object.entries(view.reward.parts || {}).map(([name, value]) => el("div", {}, el("span", { text: name }), el("b", { text: rewardText(value) })));
      asList(view.reward.steps).forEach((value, number) => rows.push(el("div", {}, el("span", { text: `step ${number}` }), el("b", { text: rewardText(value) }))));
      parts.push(el("section", {}, el("h2", { text: "Reward" }), el("div", { class: "reward-parts" }, rows)));
    }
    if (view.other_models.length) parts.push(el("section", { class: "other-models" }, el("h2", { text: "Other models" }), view.other_models.map(otherModel)));
    const other = [
      ...view.call_errors.map((one) => [one.event, `engine call failed: ${one.error}: ${one.message}`, "bad"]),
      ...view.others.map((one) => [one.event, otherText(one), one.kind === "rollback" ? "warn" : ""]),
      ...view.rewards.slice(0, -1).map((one) => [one.event, `earlier reward ${rewardText(one.value)}${one.error ? `: ${one.error}` : ""}`, ""]),
    ].sort((one, two) => one[0] - two[0]);
    if (other.length) {
      parts.push(el("section", {}, el("h2", { text: "What else happened" }),
        other.map(([event, text, tone]) => el("div", { class: `note ${tone}` }, el("span", { class: "soft", text: `event ${event} ` }), el("span", { text })))));
    }
    if (view.end && view.end.text) parts.push(el("section", {}, el("h2", { text: "Final text" }), longText(view.end.text, "said")));
    clear(this.after).append(...parts);
  }

  // --- moving ---

  chooseBranch(branch) {
    if (!branch || branch === this.branch) return;
    this.branch = branch;
    this.selected = null;
    this.drawShape();
    this.drawRows();
    this.changed();
  }

  nextBranch(step) {
    const { branches } = this.episode;
    if (branches.length < 2) return;
    this.chooseBranch(branches[(branches.indexOf(this.branch) + step + branches.length) % branches.length]);
  }

  colour(mode) {
    this.mode = mode;
    this.drawnMode = mode;
    for (const row of this.rows) row.strip.colour(mode);
    this.drawModes();
    if (this.selected !== null) this.markSelected();
  }

  goToTurn(turn) {
    const row = this.rows.find((one) => one.turn.id === turn.id && one.kind === "sampled");
    if (!row) return;
    row.node.scrollIntoView({ block: "start" });
    scrollBy(0, -this.barHeight());
  }

  nextTurn(step) {
    const top = this.barHeight() + 8;
    const sampled = this.rows.filter((row) => row.kind === "sampled");
    const places = sampled.map((row) => row.node.getBoundingClientRect().top - top);
    const at = step > 0 ? places.findIndex((place) => place > 4) : places.findLastIndex((place) => place < -4);
    if (at >= 0) this.goToTurn(sampled[at].turn);
  }

  nextDrift(step) {
    const spans = [...this.episode.driftAt.keys()].filter((offset) => this.branch.has(offset)).map((offset) => this.branch.position(offset)).sort((one, other) => one - other);
    if (!spans.length) {
      toast(this.episode.driftKnown ? "no sampled token of this branch would drift" : "drift is not known yet");
      return;
    }
    const now = this.selected === null ? -1 : this.branch.position(this.selected);
    const next = step > 0 ? spans.find((one) => one > now) ?? spans[0] : spans.findLast((one) => one < now) ?? spans[spans.length - 1];
    this.select(this.branch.offset(next), { scroll: true });
  }

  goToFinding(finding) {
    if (finding.turn === null || !this.episode.turns[finding.turn]) return;
    const turn = this.episode.turns[finding.turn];
    if (!this.branch.path.includes(turn.id)) this.chooseBranch(this.episode.branchWith(turn.id));
    const offset = [...this.episode.flaws].find(([, one]) => one === finding);
    if (offset) this.select(offset[0], { scroll: true });
    else this.goToTurn(turn);
  }

  moveToken(step) {
    if (!this.branch || !this.branch.length) return;
    const now = this.selected === null ? -1 : this.branch.position(this.selected);
    const next = Math.max(0, Math.min(this.branch.length - 1, now + step));
    this.select(this.branch.offset(next), { scroll: true });
  }

  rowWith(offset) {
    return this.rows.find((row) => offset >= row.from && offset < row.to) || null;
  }

  select(offset, { scroll }) {
    this.selected = offset;
    const row = this.rowWith(offset);
    if (!row) return;
    const chunk = row.strip.chunkWith(offset);
    row.strip.expand();
    chunk.fill();
    this.markSelected();
    const node = chunk.tokenAt(offset);
    if (scroll && node) {
      node.scrollIntoView({ block: "center" });
      requestAnimationFrame(() => {
        node.scrollIntoView({ block: "center" });
        this.showCard(node, offset);
      });
    } else if (node) this.showCard(node, offset);
    this.changed();
  }

  markSelected() {
    for (const node of this.node.querySelectorAll(".t.chosen")) node.classList.remove("chosen");
    for (const node of this.node.querySelectorAll(".item.chosen")) node.classList.remove("chosen");
    const row = this.rowWith(this.selected);
    const chunk = row && row.strip.chunkWith(this.selected);
    const node = chunk && chunk.tokenAt(this.selected);
    if (node) node.classList.add("chosen");
    const item = row && this.itemAt(row, this.selected);
    if (item) itemNodes.get(item).classList.add("chosen");
  }

  itemAt(row, offset) {
    return row.items.find((item) => item.span && offset >= row.turn.at + item.span[0] && offset < row.turn.at + item.span[1]) || null;
  }

  barHeight() {
    return this.bar.getBoundingClientRect().height + byId("top").getBoundingClientRect().height;
  }

  mapClicked(event) {
    const box = this.map.getBoundingClientRect();
    const position = Math.floor(((event.clientX - box.left) / box.width) * this.branch.length);
    this.select(this.branch.offset(Math.max(0, Math.min(this.branch.length - 1, position))), { scroll: true });
  }

  /** Show on the map which part of the branch is in the window. */
  scrolled() {
    this.scrolledAt = performance.now();
    if (!this.branch || !this.branch.length || !this.mapView) return;
    const top = this.barHeight();
    let first = null;
    let last = null;
    for (const row of this.rows) {
      const box = row.node.getBoundingClientRect();
      if (box.bottom < top) continue;
      if (box.top > innerHeight) break;
      const bottom = Math.min(innerHeight, row.strip.body.getBoundingClientRect().bottom);
      for (const chunk of row.strip.chunks) {
        const part = chunk.node.getBoundingClientRect();
        if (part.bottom < top || part.top > bottom) continue;
        if (first === null) first = this.branch.position(chunk.from) + ((chunk.to - chunk.from) * Math.max(0, top - part.top)) / (part.height || 1);
        last = this.branch.position(chunk.to - 1) - ((chunk.to - chunk.from) * Math.max(0, part.bottom - bottom)) / (part.height || 1);
      }
    }
    this.mapView.hidden = first === null;
    if (first === null) return;
    this.mapView.style.left = `${(100 * first) / this.branch.length}%`;
    this.mapView.style.width = `${Math.max(0.3, (100 * (last - first)) / this.branch.length)}%`;
  }

  // --- hover ---

  hovered(event) {
    const node = tokenOf(event.target);
    clearTimeout(this.hoverTimer);
    if (!node) return;
    if (performance.now() - this.scrolledAt < SCROLL_MILLISECONDS) { // tokens pass below a pointer that stands still
      this.hoverTimer = setTimeout(() => { if (node.isConnected && node.matches(":hover")) this.hoverToken(node); }, SCROLL_MILLISECONDS);
      return;
    }
    this.hoverToken(node);
  }

  hoverToken(node) {
    this.showCard(node, node.tokenOffset);
    const row = this.rowWith(node.tokenOffset);
    const item = row && this.itemAt(row, node.tokenOffset);
    if (this.hotItem && this.hotItem !== item) itemNodes.get(this.hotItem).classList.remove("hot");
    this.hotItem = item;
    if (item) itemNodes.get(item).classList.add("hot");
  }

  hideCard() {
    byId("card").hidden = true;
    if (this.hotItem) itemNodes.get(this.hotItem).classList.remove("hot");
    this.hotItem = null;
  }

  showCard(node, offset) {
    const card = byId("card");
    clear(card).append(...this.cardLines(offset));
    card.hidden = false;
    const box = node.getBoundingClientRect();
    const size = card.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - size.width - 8));
    const below = box.bottom + 6 + size.height < innerHeight;
    card.style.left = `${left}px`;
    card.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - size.height - 6)}px`;
  }

  cardLines(offset) {
    const { episode, branch } = this;
    const turn = episode.turns[episode.turnOf[offset]];
    const lines = [];
    const line = (label, value, tone) => lines.push(el("span", { class: "soft", text: label }), el("span", { class: tone ? `tone-text-${tone}` : "", text: value }));
    const text = episode.text(offset);
    line("token", `${JSON.stringify(text)} · id ${episode.tokenId(offset)} · position ${branch.position(offset)}`);
    const bytes = episode.bytesText(offset);
    if (bytes) line("bytes", bytes.length > 60 ? `${bytes.slice(0, 60)} …` : bytes);
    line("origin", `${ORIGIN_NAMES[episode.origin[offset]]} · turn ${turn.id}${episode.agentName(turn) ? ` of ${turn.detail.agent}` : ""}`);
    const logprob = episode.logprob(offset);
    if (logprob !== null) line("sampled", `logprob ${logprob.toFixed(4).replace("-", "−")} · p ${Math.exp(logprob).toFixed(3)} · weights ${versionText(episode.versionNames[episode.version[offset]])}`);
    line("loss", ["not sampled: masked", "trained", "trained in another branch: masked here", "sampled, not trained"][branch.loss(offset)]);
    const made = [...episode.trainer.keys()].map((name) => [name, episode.trainerValue(name, offset)]).filter(([, value]) => value !== null);
    if (made.length) line("trainer", made.map(([name, value]) => `${name.replaceAll("_", " ")} ${signed(value)}`).join(" · "));
    const scored = episode.trainerValue("logprob", offset);
    if (scored !== null && logprob !== null) line("trainer − engine", `logprob ${signed(scored - logprob)}`);
    const span = episode.driftSpan(offset);
    if (span) {
      const became = span.became.map(({ id, text }) => `${JSON.stringify(text)} (${id})`).join(" ");
      line("text again", `${became || "nothing"}: ${plural(span.became.length, "token")} instead of ${span.end - span.start}`, "drift");
    } else if (episode.origin[offset] === TOKEN_ORIGIN.SAMPLED && turn.drift) line("text again", "the same token");
    const rendered = episode.rendered.get(offset);
    if (rendered) line("rendered again", rendered.text ? JSON.stringify(showSpace(rendered.text)) : "nothing", "drift");
    const flaw = episode.flaws.get(offset);
    if (flaw) line("proof", `${flaw.kind.replaceAll("_", " ")}: ${flaw.message}`, "bad");
    else if (episode.suspects.has(offset)) line("proof", "a token in this range was changed", "bad");
    return lines;
  }

  async loadRendered() {
    const { episode, branch } = this;
    let answer;
    try {
      answer = await this.source.rendered(episode.id, branch.id);
    } catch (error) {
      answer = { spans: [], error: error.message };
    }
    if (answer.error) {
      toast(answer.error);
      return;
    }
    episode.rendered.clear();
    for (const [start, end, text] of answer.spans) {
      const from = start === end ? Math.max(0, start - 1) : start;
      const span = { text: start === end ? `${text} (added)` : text, last: branch.offset(Math.max(from, end - 1)) };
      for (let position = from; position < Math.max(end, from + 1); position++) episode.rendered.set(branch.offset(position), span);
    }
    toast(answer.spans.length ? `rendering again would change ${plural(answer.spans.length, "place")}` : "rendering again gives exactly these tokens");
    this.colour("drift");
  }

  // --- copying ---

  copyScript() {
    copyText(reproductionScript(this.about().path, this.episode.id, this.about().tokenizer), "reproduction script");
  }

  copyJson() {
    const { episode } = this;
    const { view } = episode;
    const branches = episode.branches.map((branch) => {
      const offsets = Array.from({ length: branch.length }, (_, position) => branch.offset(position));
      return {
        id: branch.id, turns: branch.path, main: branch.main, agent: branch.agent,
        token_ids: offsets.map((offset) => episode.tokenId(offset)),
        loss_mask: offsets.map((offset) => (branch.loss(offset) === 1 ? 1 : 0)),
        logprobs: offsets.map((offset) => episode.logprob(offset) ?? 0),
        versions: offsets.map((offset) => (episode.version[offset] < 0 ? null : episode.versionNames[episode.version[offset]])),
      };
    });
    const { id, task, sample, reward, end, metrics, tools, other_models, call_errors, others } = view;
    copyText(JSON.stringify({ id, task, sample, reward, end, metrics, tools, other_models, call_errors, others, verdict: this.verdict, branches }, null, 1), "JSON");
  }
}

/** Run after the next frame is on the screen. */
function afterPaint(run) {
  requestAnimationFrame(() => setTimeout(run));
}

const VERDICT_WORDS = {
  proved: "Every prompt equals the recorded branch; every trained token was sampled at its position.",
  empty: "The record is complete and consistent, and has no token to train.",
  unfinished: "The record is consistent so far; the end is not written yet.",
  data_lost: "A file or the end of a file is missing; the rest is consistent.",
  broken: "The record contradicts itself: it was changed, or written incorrectly.",
};

function signed(value) {
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

function tokenOf(target) {
  const node = target.closest ? target.closest(".t") : null;
  return node && node.tokenOffset !== undefined ? node : null;
}

/** What another model was asked, and what it said or why it said nothing. */
function otherModel(one) {
  const about = [secondsText(one.seconds), one.attempts > 1 ? plural(one.attempts, "attempt") : ""].filter(Boolean).join(", ");
  return el("details", { class: `note ${one.text === null ? "bad" : ""}`, open: one.text === null },
    el("summary", {}, el("span", { class: "soft", text: `event ${one.event} ` }), el("b", { text: one.name }), el("span", { class: "soft", text: ` ${about} ` }), el("span", { text: one.text === null ? `${one.error}: ${one.message}` : one.text.slice(0, 120) })),
    el("h3", { text: "asked" }), longText(one.asked === null ? "(not recorded)" : one.asked, "said"),
    one.text === null ? null : [el("h3", { text: "said" }), longText(one.text, "said")]);
}

function otherText(one) {
  if (one.kind === "rollback") return `rolled back to ${plural(one.turns, "turn")}: ${one.reason}`;
  if (one.kind === "resume") return `taken over by process ${one.pid} (worker ${one.worker}), epoch ${one.epoch}`;
  if (one.kind === "teacher") return `scored by the teacher ${one.model}`;
  if (one.kind === "staleness") {
    return `staleness: ${one.decision}; the oldest token of the group has age ${one.age ?? "unknown"}, at most ${one.limit}; weights were ${one.current ?? "unknown"}`;
  }
  return `paused while sampling, after ${plural(one.count, "token")}${one.text ? `: ${one.text}` : ""}`;
}
