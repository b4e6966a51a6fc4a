/**
 * All that the page shows of a call, behind one object: `clear` before a call, then what arrives.
 *
 * 1. Views know data, never the call; app.js and attempt.js bring it.
 * 2. After a call everything stays as it was last, but the meters fall to silence.
 */

import { EventLog } from "./eventlog.js";
import { Hops } from "./hops.js";
import { Meter } from "./levels.js";
import { Plot } from "./plot.js";
import { Scope } from "./scope.js";
import { Timeline } from "./timeline.js";
import { Turns } from "./turns.js";
import { duration, milliseconds, percent, rounded } from "./words.js";

const FIGURES = [
  ["Received", (sample) => rounded(sample.packetsIn, "packets/s")],
  ["Sent", (sample) => rounded(sample.packetsOut, "packets/s")],
  ["Jitter", (sample) => withMs(sample.jitterMs)],
  ["Playout buffer", (sample) => rounded(sample.bufferMs, "ms")],
  ["Concealed", (sample) => percent(sample.concealed)],
  ["Codec", (sample) => sample.codec ?? "–"],
];

export class Views {
  #byId;
  #figures;
  #timeline;
  #hops;
  #log;
  #scope;
  #out;
  #back;
  #rtt;
  #loss;
  #turns;

  constructor(byId) {
    this.#byId = byId;
    this.#timeline = new Timeline(byId("moments"));
    this.#hops = new Hops(byId("hops"));
    this.#log = new EventLog(byId("log"), byId("log-empty"));
    this.#scope = new Scope(byId("scope"));
    this.#out = new Meter(byId("meter-out"));
    this.#back = new Meter(byId("meter-back"));
    this.#rtt = new Plot(byId("plot-rtt"), { series: ["both"], least: 5, format: withMs });
    this.#loss = new Plot(byId("plot-loss"), { series: ["out", "back"], least: 0.02, format: percent });
    this.#turns = new Turns(byId("turns"), byId("turns-empty"), byId("floor"));
    this.#figures = FIGURES.map(([name]) => addFigure(byId("figures"), name));
  }

  clear() {
    for (const view of [this.#timeline, this.#hops, this.#log, this.#scope, this.#rtt, this.#loss, this.#turns]) view.clear();
    for (const value of this.#figures) value.textContent = "–";
    this.clock(0);
  }

  silence() {
    this.#out.clear();
    this.#back.clear();
  }

  /** `words` are those of notices.js for the backend in question. */
  backend(name, version, words) {
    this.#hops.backend(name);
    const facts = [name && `backend ${name}`, version && `version ${version}`];
    this.#byId("facts").textContent = facts.filter(Boolean).join(" · ");
    this.#byId("call-title").textContent = words.title;
    this.#turns.empty(words.empty);
  }

  turn(turn) {
    this.#turns.show(turn);
  }

  floor(floor) {
    this.#turns.floor(floor);
  }

  clock(ms) {
    this.#byId("clock").textContent = duration(ms);
  }

  levels(outDb, backDb, now) {
    this.#out.show(outDb, now);
    this.#back.show(backDb, now);
    this.#scope.push(outDb, backDb, now);
  }

  mark(name, ms, detail) {
    this.#timeline.mark(name, ms);
    if (detail) this.#timeline.detail(name, detail);
  }

  /** One line of the event log: {direction: "in" | "out" | "note", data, ms}. */
  message(entry) {
    this.#log.add(entry);
  }

  /** `sample`: of sampler.js; `server`: the server's statistics of the call, or null. */
  sample(sample, server) {
    this.#rtt.push([sample.rttMs], withMs(sample.rttMs));
    this.#loss.push([sample.lossUp, sample.lossDown], percent(worst(sample.lossUp, sample.lossDown)));
    this.#hops.show(sample, server);
    FIGURES.forEach(([, text], index) => {
      this.#figures[index].textContent = text(sample);
    });
  }

  server(server) {
    this.#timeline.server(server.timeline_ms);
    this.#hops.server(server);
  }
}

function addFigure(list, name) {
  const figure = document.createElement("div");
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  term.textContent = name;
  value.textContent = "–";
  figure.append(term, value);
  list.append(figure);
  return value;
}

function withMs(ms) {
  if (ms === null) return "–";
  return ms === 0 ? "<1 ms" : `${milliseconds(ms)} ms`;
}

function worst(...fractions) {
  const known = fractions.filter((fraction) => fraction !== null);
  return known.length ? Math.max(...known) : null;
}
