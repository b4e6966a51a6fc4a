/**
 * The data channel's log: when, which way, which type, and the whole event on demand.
 *
 * 1. At most 200 entries; the oldest give way.
 * 2. What the server sends is shown as text, never as markup.
 * 3. The list follows its end only while the reader is there.
 */

import { milliseconds } from "./words.js";

const MOST_ENTRIES = 200;
const ARROWS = { in: ["←", "received"], out: ["→", "sent"], note: ["·", "note"] };

export class EventLog {
  #list;
  #frame;
  #empty;

  constructor(list, empty) {
    this.#list = list;
    this.#frame = list.parentElement;
    this.#empty = empty;
  }

  clear() {
    this.#list.replaceChildren();
    this.#empty.hidden = false;
  }

  add({ direction, data, ms }) {
    const atEnd = this.#frame.scrollTop + this.#frame.clientHeight >= this.#frame.scrollHeight - 24;
    const { title, body } = direction === "note" ? { title: data, body: null } : read(data);
    const entry = document.createElement("li");
    entry.className = `entry ${direction}`;
    entry.dataset.type = title;
    const head = [span("entry-time", `${milliseconds(ms)} ms`), arrow(direction), typeName(title)];
    if (body === null) {
      entry.classList.add("plain");
      entry.append(...head);
    } else {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      const text = document.createElement("pre");
      summary.append(...head);
      text.textContent = body;
      details.append(summary, text);
      entry.append(details);
    }
    this.#list.append(entry);
    while (this.#list.childElementCount > MOST_ENTRIES) this.#list.firstElementChild.remove();
    this.#empty.hidden = true;
    if (atEnd) this.#frame.scrollTop = this.#frame.scrollHeight;
  }
}

function read(data) {
  if (typeof data !== "string") return { title: `binary, ${data.byteLength ?? data.size} bytes`, body: null };
  try {
    const event = JSON.parse(data);
    return { title: String(event.type ?? "event"), body: JSON.stringify(event, null, 2) };
  } catch {
    return { title: "text", body: data };
  }
}

function arrow(direction) {
  const [sign, name] = ARROWS[direction];
  const node = span("entry-arrow", sign);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", name);
  return node;
}

/** A type that is too long for its line breaks where its words do. */
function typeName(title) {
  const node = span("entry-type", "");
  for (const word of title.split(/(?<=[._])/)) node.append(word, document.createElement("wbr"));
  return node;
}

function span(className, text) {
  const node = document.createElement("span");
  node.className = className;
  node.textContent = text;
  return node;
}
