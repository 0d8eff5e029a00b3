// Where the data comes from: the local server, or the JSON embedded in an exported file.

// Addresses are relative: the page of a run in a folder has its own /run/NAME/api.
export async function getJson(path, signal) {
  const response = await fetch(path, { signal });
  const content = await response.json();
  if (!response.ok) throw new Error(content.error || `the server answered ${response.status}`);
  return content;
}

let embeddedImages = null; // data URLs by digest, in an exported file

/** The address of an image that the run has stored; "" if an exported file does not have it. */
export function imageUrl(digest) {
  return embeddedImages ? embeddedImages[digest] || "" : `api/image?digest=${encodeURIComponent(digest)}`;
}

export class ServerSource {
  live = true;

  about() { return getJson("api/run"); }

  rows(since) { return getJson(`api/rows?since=${since}`); }

  /** One episode; while the tokenizer is loading, `loading` is true and texts are missing, unless `wait` is true. */
  episode(id, signal, wait = false) { return getJson(`api/episode?id=${encodeURIComponent(id)}${wait ? "&wait=1" : ""}`, signal); }

  drift(id, signal) { return getJson(`api/drift?id=${encodeURIComponent(id)}`, signal); }

  /** What a trainer made of an episode's tokens: values by name, by turn. */
  trainer(id, signal) { return getJson(`api/trainer?id=${encodeURIComponent(id)}`, signal); }

  tasks() { return getJson("api/tasks"); }

  verdict(id) { return getJson(`api/verdict?id=${encodeURIComponent(id)}`); }

  runVerdict() { return getJson("api/verdict"); }

  rendered(id, branch) { return getJson(`api/rendered?id=${encodeURIComponent(id)}&branch=${branch}`); }

  events(id) { return getJson(`api/events?id=${encodeURIComponent(id)}`); }

  /** Call `found` with the ids of episodes that contain a text, as they are found. */
  async search(query, found, signal) {
    const response = await fetch(`api/search?q=${encodeURIComponent(query)}`, { signal });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      found(lines.filter((line) => line).map((line) => JSON.parse(line)));
    }
  }
}

export class EmbeddedSource {
  live = false;

  constructor(data) {
    this.data = data;
    embeddedImages = data.images || {};
  }

  async about() { return this.data.run; }

  async rows(since) { return { version: 1, complete: true, rows: since ? [] : this.data.rows }; }

  async episode(id) {
    const found = this.data.episodes[id];
    if (!found) throw new Error("this episode is not part of the exported file");
    return found;
  }

  async drift(id) { return this.data.drifts[id]; }

  async trainer(id) { return (this.data.trainer || {})[id] || {}; }

  async tasks() { return this.data.tasks; }

  async verdict(id) { return this.data.verdicts[id]; }

  async runVerdict() { return this.data.verdict; }

  async rendered() { return { spans: [], error: "rendering messages again needs the viewer itself, not an exported file" }; }

  async events(id) {
    const { tools, other_models, call_errors, others, rewards, end, events, turns } = await this.episode(id);
    return { events, turns, tools, other_models, call_errors, others, rewards, end };
  }

  async search(query, found) {
    const wanted = query.toLowerCase();
    for (const [id, episode] of Object.entries(this.data.episodes)) {
      if (someText(searchedParts(episode), (text) => text.toLowerCase().includes(wanted))) found([id]);
    }
  }
}

/** What the search looks through, as `search.py` does: all that was said or went wrong; names of fields never match. */
function searchedParts({ task, turns, tools, other_models, call_errors, others, rewards, end }) {
  return [
    task, end && end.text, end && end.failure, end && end.output, end && end.error_output,
    turns.map(({ rows, reply, detail, finish_detail }) => [finish_detail, detail.failed_calls, reply.map(saidBy), rows.map((row) => row.items.map(saidBy))]),
    tools.map((tool) => [tool.name, namesAndValues(tool.arguments), tool.text, tool.raised, tool.raised_at]),
    other_models.map((one) => [one.name, one.asked, one.text, one.error, one.message]),
    call_errors.map((one) => [one.error, one.message]),
    others.map((one) => [one.reason, one.text]),
    rewards.map((one) => [one.error, Object.keys(one.parts || {})]),
  ];
}

function saidBy({ text, name, arguments: given, error, failure }) {
  return [text, name, given, error, failure];
}

function namesAndValues(value) {
  if (!value || typeof value !== "object") return value;
  return Array.isArray(value) ? value.map(namesAndValues) : Object.entries(value).map(([name, inner]) => [name, namesAndValues(inner)]);
}

/** Whether a test holds for any string inside of a value. */
function someText(value, test) {
  if (typeof value === "string") return test(value);
  return Boolean(value) && typeof value === "object" && Object.values(value).some((inner) => someText(inner, test));
}

export function openSource() {
  const embedded = document.getElementById("embedded");
  return embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new ServerSource();
}
