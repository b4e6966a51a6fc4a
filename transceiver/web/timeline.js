/**
 * The connection's timeline: one row a moment, a bar from the moment before it, the browser's and the server's clock.
 *
 * 1. Both columns count from the offer: the browser from making it, the server from receiving it.
 * 2. Bars share one scale, but for a last one that lies far behind the others.
 * 3. Rows stay in the protocol's order, whatever order the moments happened in.
 */

import { MOMENTS } from "./call.js";
import { milliseconds } from "./words.js";

const OFF_SCALE = 3;

const ROWS = {
  offer: ["Offer", "made by the browser"],
  answer: ["Answer", "over HTTP"],
  ice: ["ICE", "address checked"],
  dtls: ["DTLS", "keys agreed"],
  channel: ["Data channel", "first event"],
  first_audio_in: ["First audio in", "yours, sent off"],
  first_audio_out: ["First audio out", "back in your ear"],
};

export class Timeline {
  #rows = new Map();
  #marks = {};

  constructor(body) {
    for (const name of MOMENTS) {
      const [title, detail] = ROWS[name];
      const row = body.insertRow();
      row.dataset.moment = name;
      const head = document.createElement("th");
      head.scope = "row";
      const small = document.createElement("small");
      small.textContent = detail;
      head.append(title, small);
      const bar = document.createElement("div");
      bar.className = "bar";
      const barCell = document.createElement("td");
      barCell.className = "bar-cell";
      barCell.append(bar);
      const browser = numberCell("browser");
      const server = numberCell("server");
      row.append(head, barCell, browser, server);
      this.#rows.set(name, { row, small, bar, browser, server, detail });
    }
  }

  clear() {
    this.#marks = {};
    for (const { row, small, bar, browser, server, detail } of this.#rows.values()) {
      row.classList.remove("reached");
      small.textContent = detail;
      bar.style.removeProperty("--from");
      bar.style.removeProperty("--to");
      browser.textContent = "–";
      server.textContent = "–";
    }
  }

  mark(name, ms) {
    this.#marks[name] = ms;
    const { row, browser } = this.#rows.get(name);
    row.classList.add("reached");
    browser.textContent = milliseconds(ms);
    this.#drawBars();
  }

  detail(name, text) {
    this.#rows.get(name).small.textContent = text;
  }

  /** `timelineMs`: the server's {answer, ice, …}, null for what has not happened. */
  server(timelineMs) {
    for (const [name, ms] of Object.entries(timelineMs ?? {})) {
      const cells = this.#rows.get(name);
      if (cells && ms !== null) cells.server.textContent = milliseconds(ms);
    }
  }

  #drawBars() {
    const reached = Object.entries(this.#marks).sort((a, b) => a[1] - b[1]);
    const end = Math.max(1, scaleOf(reached.map(([, ms]) => ms)));
    let before = 0;
    for (const [name, ms] of reached) {
      const { bar } = this.#rows.get(name);
      bar.style.setProperty("--from", (before / end).toFixed(4));
      bar.style.setProperty("--to", Math.min(1, ms / end).toFixed(4));
      before = ms;
    }
  }
}

/** Where the bars end. Who takes turns answers long after the connection stands: that bar runs off the scale. */
function scaleOf(moments) {
  const last = moments.at(-1);
  const before = moments.at(-2) ?? 0;
  return before > 0 && last > OFF_SCALE * before ? before * 1.25 : last;
}

function numberCell(side) {
  const cell = document.createElement("td");
  cell.className = `number ${side}`;
  cell.textContent = "–";
  return cell;
}
