/**
 * A small line plot of the last minute as SVG, one point a second.
 *
 * 1. null is a gap in the line, not a zero.
 * 2. The scale starts at 0 and ends at a round number, never below `least`.
 * 3. For assistive technology the plot is an image whose label is a sentence.
 */

const NS = "http://www.w3.org/2000/svg";
const POINTS = 60;
const WIDTH = 240;
const HEIGHT = 72;
const TOP = 6;

export class Plot {
  #figure;
  #value;
  #svg;
  #ceiling;
  #lines;
  #least;
  #format;

  /** `series`: one class name for each line ("out", "back", "both"); `format(value)` → text with unit. */
  constructor(figure, { series, least, format }) {
    this.#figure = figure;
    this.#value = figure.querySelector(".plot-value");
    this.#least = least;
    this.#format = format;
    this.#svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    for (const y of [TOP, (TOP + HEIGHT) / 2, HEIGHT - 1]) {
      this.#svg.append(element("path", { class: "grid", d: `M0 ${y}H${WIDTH}` }));
    }
    this.#lines = series.map((name) => ({
      values: [],
      area: this.#svg.appendChild(element("path", { class: `area ${name}` })),
      path: this.#svg.appendChild(element("path", { class: `line ${name}` })),
    }));
    const frame = document.createElement("div");
    frame.className = "plot-frame";
    this.#ceiling = document.createElement("span");
    this.#ceiling.className = "plot-ceiling";
    this.#ceiling.setAttribute("aria-hidden", "true");
    frame.append(this.#svg, this.#ceiling);
    figure.append(frame);
    this.clear();
  }

  clear() {
    for (const line of this.#lines) line.values = [];
    this.#value.textContent = "–";
    this.#draw();
  }

  /** `values`: one number or null for each line; `text`: the figure shown beside the plot's name. */
  push(values, text) {
    this.#lines.forEach((line, index) => {
      line.values.push(values[index]);
      line.values.splice(0, line.values.length - POINTS);
    });
    this.#value.textContent = text;
    this.#draw();
  }

  #draw() {
    const known = this.#lines.flatMap((line) => line.values).filter((value) => value !== null);
    const top = roundUp(Math.max(this.#least, ...known));
    const x = (line, index) => WIDTH - ((line.values.length - 1 - index) * WIDTH) / (POINTS - 1);
    const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 1 - TOP);
    for (const line of this.#lines) {
      const runs = runsOf(line.values);
      const trace = (run) => run.map(([index, value]) => `${x(line, index).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
      const closed = (run) => `M${x(line, run[0][0]).toFixed(1)} ${HEIGHT - 1}L${trace(run)}V${HEIGHT - 1}Z`;
      line.path.setAttribute("d", runs.map((run) => `M${trace(run)}h0.01`).join(""));
      line.area.setAttribute("d", runs.map(closed).join(""));
    }
    this.#ceiling.textContent = this.#format(top);
    const name = this.#figure.querySelector(".plot-name").firstChild.textContent.trim();
    const summary = known.length ? `now ${this.#value.textContent}, at most ${this.#format(Math.max(...known))}` : "no figures yet";
    this.#svg.setAttribute("aria-label", `${name}: ${summary}`);
  }
}

/** Splits into runs of [index, value] without null. */
function runsOf(values) {
  const runs = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || values[index - 1] === null) runs.push([]);
    runs[runs.length - 1].push([index, value]);
  });
  return runs;
}

function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * step).find((candidate) => candidate >= value - 1e-9);
}

function element(name, attributes) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
