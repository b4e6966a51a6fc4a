/**
 * The conversation as it is shown: one line a turn, in the order in which turns began, and who has the floor.
 *
 * 1. What anybody said is shown as text, never as markup.
 * 2. At most 100 turns; the oldest give way. The list follows its end only while the reader is there.
 */

const MOST_TURNS = 100;
const NAMES = { you: "You", model: "Model", server: "Server" };
const SILENT = { you: "(no transcript)", model: "(sound only)", server: "" };
const FLOORS = {
  listening: "Listening",
  you: "You have the floor",
  thinking: "Thinking",
  model: "The model speaks",
};

export class Turns {
  #list;
  #frame;
  #card;
  #empty;
  #floor;
  #nodes = new Map();

  constructor(list, empty, floor) {
    this.#list = list;
    this.#frame = list.parentElement;
    this.#card = list.closest("section");
    this.#empty = empty;
    this.#floor = floor;
  }

  clear() {
    this.#nodes.clear();
    this.#list.replaceChildren();
    this.#empty.hidden = false;
    this.floor(null);
  }

  /** What stands there while nobody has said anything; null where nobody will, and then there is no card for it. */
  empty(text) {
    this.#empty.textContent = text ?? "";
    this.#reveal(text !== null || this.#nodes.size > 0);
  }

  /** `floor` of conversation.js, or null. */
  floor(floor) {
    this.#floor.textContent = FLOORS[floor] ?? "";
    this.#floor.dataset.floor = floor ?? "";
  }

  /** A turn of conversation.js, new or changed. */
  show(turn) {
    this.#reveal(true);
    const atEnd = this.#frame.scrollTop + this.#frame.clientHeight >= this.#frame.scrollHeight - 24;
    const node = this.#nodes.get(turn.id) ?? this.#add(turn);
    node.classList.toggle("cut", turn.cut);
    node.querySelector(".turn-text").textContent = turn.text || SILENT[turn.who];
    node.querySelector(".turn-text").classList.toggle("unknown", !turn.text);
    node.querySelector(".turn-note").textContent = turn.note;
    if (atEnd) this.#frame.scrollTop = this.#frame.scrollHeight;
  }

  /** The page's grid has no place for a card that is hidden. */
  #reveal(shown) {
    this.#card.hidden = !shown;
    document.body.dataset.turns = shown ? "some" : "none";
  }

  #add({ id, who }) {
    const node = document.createElement("li");
    node.className = `turn ${who}`;
    for (const [name, text] of [["who", NAMES[who]], ["text", ""], ["note", ""]]) {
      const part = document.createElement("span");
      part.className = `turn-${name}`;
      part.textContent = text;
      node.append(part);
    }
    this.#nodes.set(id, node);
    this.#list.append(node);
    while (this.#nodes.size > MOST_TURNS) {
      const [oldest] = this.#nodes.keys();
      this.#nodes.get(oldest).remove();
      this.#nodes.delete(oldest);
    }
    this.#empty.hidden = true;
    return node;
  }
}
