// Elements from data. Text is always set as text, never as markup, and characters that would hide or reorder text
// (controls, bidi marks, zero-width) are replaced by visible marks. The selector after an emoji is left as it is.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const ODD_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb]|(?<![\u203c-\u3299\u{1f000}-\u{1faff}])\ufe0f|[\u{e0000}-\u{e0fff}]|[\ud800-\udfff]/gu;
const ODD_NAMES = {
  0x0: "NUL", 0x7: "BEL", 0x8: "BS", 0xd: "CR", 0x1b: "ESC", 0x7f: "DEL", 0xad: "SHY", 0x200b: "ZWSP", 0x200c: "ZWNJ",
  0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO",
  0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM", 0x2028: "LS", 0x2029: "PS",
};

/** Create an element. Properties: class, text, title, data, on, and any attribute. Children may be null, or lists. */
export function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  setProperties(node, properties);
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** Create an SVG element. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else node.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function setProperties(node, properties) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") appendText(node, String(value));
    else if (name === "title") node.title = plainReveal(String(value));
    else if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

/** Append text to a node; odd characters become small marks that name them. */
export function appendText(node, text) {
  if (text.search(ODD_CHARACTERS) < 0) {
    node.append(text);
    return node;
  }
  let at = 0;
  for (const found of text.matchAll(ODD_CHARACTERS)) {
    if (found.index > at) node.append(text.slice(at, found.index));
    const mark = document.createElement("span");
    mark.className = "odd";
    mark.textContent = oddName(found[0]);
    mark.title = codePointName(found[0]);
    node.append(mark);
    at = found.index + found[0].length;
  }
  node.append(text.slice(at));
  return node;
}

/** The same for places that hold plain text only, such as titles. */
export function plainReveal(text) {
  return text.replace(ODD_CHARACTERS, (character) => `⟨${oddName(character)}⟩`);
}

function oddName(character) {
  const code = character.codePointAt(0);
  return ODD_NAMES[code] || codePointName(character);
}

function codePointName(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

export function byId(id) {
  return document.getElementById(id);
}

let toastTimer = 0;

export function toast(message) {
  const node = byId("toast");
  clear(node);
  appendText(node, message);
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { node.hidden = true; }, 2400);
}

// Repeats work, each time that long after it ended, and says when it fails.
export function every(milliseconds, work) {
  const again = async () => {
    try {
      await work();
    } catch (error) {
      toast(`the viewer does not answer: ${error.message}`);
    }
    setTimeout(again, milliseconds);
  };
  setTimeout(again, milliseconds);
}

export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "offscreen", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(`${what} copied`);
}
