/**
 * The last six seconds of both directions on a canvas: yours grows up from the middle line, what came back grows down.
 *
 * 1. A column is the loudest level of 50 ms; the echo's delay is the shift between the two halves.
 * 2. Colours come from the style sheet (--out, --back, --line), so dark and light need no code.
 * 3. With reduced motion the picture moves by whole columns only.
 */

import { FLOOR_DB } from "./levels.js";

const COLUMN_MS = 50;
const COLUMNS = 120;

export class Scope {
  #canvas;
  #context;
  #columns = [];
  #openedAt = 0;
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    new ResizeObserver(() => this.draw(this.#openedAt)).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.#openedAt));
  }

  push(outDb, backDb, now) {
    if (!this.#columns.length || now - this.#openedAt >= COLUMN_MS) {
      const missed = this.#columns.length ? Math.min(COLUMNS, Math.floor((now - this.#openedAt) / COLUMN_MS) - 1) : 0;
      for (let i = 0; i < missed; i += 1) this.#columns.push([FLOOR_DB, FLOOR_DB]);
      this.#columns.push([outDb, backDb]);
      this.#columns.splice(0, this.#columns.length - COLUMNS - 1);
      this.#openedAt += this.#openedAt ? (missed + 1) * COLUMN_MS : now;
    } else {
      const last = this.#columns[this.#columns.length - 1];
      last[0] = Math.max(last[0], outDb);
      last[1] = Math.max(last[1], backDb);
    }
    this.draw(now);
  }

  clear() {
    this.#columns = [];
    this.#openedAt = 0;
    this.draw(0);
  }

  draw(now) {
    const { width, height } = this.#fit();
    const context = this.#context;
    const style = getComputedStyle(this.#canvas);
    const middle = height / 2;
    const pitch = width / COLUMNS;
    const bar = Math.max(1, pitch * 0.62);
    const shift = this.#still.matches ? 0 : (Math.min(COLUMN_MS, now - this.#openedAt) / COLUMN_MS) * pitch;
    context.clearRect(0, 0, width, height);
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, Math.round(middle) - 0.5, width, 1);
    const draw = (side, colour, direction) => {
      context.fillStyle = style.getPropertyValue(colour);
      context.beginPath();
      this.#columns.forEach((column, index) => {
        const level = Math.max(0, 1 - column[side] / FLOOR_DB);
        const length = level ** 1.6 * (middle - 5);
        if (length < 0.5) return;
        const x = width - (this.#columns.length - index) * pitch - shift + pitch;
        context.roundRect(x, direction < 0 ? middle - 2 - length : middle + 2, bar, length, bar / 2);
      });
      context.fill();
    };
    draw(0, "--out", -1);
    draw(1, "--back", 1);
  }

  #fit() {
    const ratio = globalThis.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (this.#canvas.width !== Math.round(width * ratio) || this.#canvas.height !== Math.round(height * ratio)) {
      this.#canvas.width = Math.round(width * ratio);
      this.#canvas.height = Math.round(height * ratio);
    }
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { width, height };
  }
}
