/**
 * The demo page: buttons, one call at a time, and who shows what.
 *
 * 1. body[data-state] is the page's state: idle, asking, offering, connecting, connected, interrupted, ended.
 * 2. Only this file knows both the call and the views; neither knows the other.
 * 3. `voiceRelay` in the console holds the running call and its latest sample.
 */

import { Call } from "./call.js";
import { EventLog } from "./eventlog.js";
import { Hops } from "./hops.js";
import { FLOOR_DB, Meter, Tap } from "./levels.js";
import * as notices from "./notices.js";
import { Plot } from "./plot.js";
import { Sampler } from "./sampler.js";
import { Scope } from "./scope.js";
import { callStats, loadConfig } from "./signaling.js";
import { openMicrophone, openTone } from "./sources.js";
import { Timeline } from "./timeline.js";
import { duration, milliseconds, percent, rounded } from "./words.js";

const SAMPLE_MS = 1000;
const DEFAULT_CALLS_URL = "/v1/realtime/calls";
const LIVE = new Set(["asking", "offering", "connecting", "connected", "interrupted"]);
const STATUS = {
  idle: "Ready",
  asking: "Waiting for the microphone",
  offering: "Calling",
  connecting: "Connecting",
  connected: "Connected",
  interrupted: "Interrupted, waiting for it to come back",
  ended: "Call ended",
};

const HINTS = {
  microphone: "Headphones are best: through loudspeakers, your browser takes the echo out again.",
  tone: "A melody goes into the call. What you hear is what came back.",
};

const $ = (id) => document.getElementById(id);
const views = {
  timeline: new Timeline($("moments")),
  hops: new Hops($("hops")),
  log: new EventLog($("log"), $("log-empty")),
  scope: new Scope($("scope")),
  out: new Meter($("meter-out")),
  back: new Meter($("meter-back")),
  rtt: new Plot($("plot-rtt"), { series: ["both"], least: 5, format: (ms) => `${milliseconds(ms)} ms` }),
  loss: new Plot($("plot-loss"), { series: ["out", "back"], least: 0.02, format: percent }),
};
const FIGURES = [
  ["Received", (s) => rounded(s.packetsIn, "packets/s")],
  ["Sent", (s) => rounded(s.packetsOut, "packets/s")],
  ["Jitter", (s) => (s.jitterMs === null ? "–" : `${milliseconds(s.jitterMs)} ms`)],
  ["Playout buffer", (s) => rounded(s.bufferMs, "ms")],
  ["Concealed", (s) => percent(s.concealed)],
  ["Codec", (s) => s.codec ?? "–"],
];

let config = { calls_url: DEFAULT_CALLS_URL };
let audio = null;
let attempt = null;
const inspect = { call: null, sample: null, state: "idle" };
globalThis.voiceRelay = inspect;

function setState(state, text = STATUS[state]) {
  inspect.state = state;
  document.body.dataset.state = state;
  $("status-text").textContent = text;
  const live = LIVE.has(state);
  $("talk").textContent = !live ? "Talk" : state === "connected" || state === "interrupted" ? "Hang up" : "Cancel";
  $("talk").classList.toggle("danger", live);
  $("tone").hidden = live;
  $("mute").hidden = !live || state === "asking";
}

function notify(notice) {
  notices.showNotice($("notice"), notice);
}

/** One press of Talk; everything that it starts ends with it. */
class Attempt {
  taps = {};
  timers = [];
  sampler = new Sampler();
  source = null;
  call = null;
  connectedAt = null;
  over = false;

  async run(kind) {
    clearViews();
    notify(null);
    setState(kind === "microphone" ? "asking" : "offering");
    audio ??= new AudioContext({ latencyHint: "interactive" });
    audio.resume();
    let source;
    try {
      source = kind === "microphone" ? await openMicrophone() : openTone(audio);
    } catch (error) {
      if (this.over) return;
      this.finish();
      setState("idle");
      notify(notices.sourceNotice(error));
      return;
    }
    if (this.over) {
      source.stop();
      return;
    }
    this.source = source;
    $("meter-out-name").textContent = kind === "tone" ? "Tone" : "You";
    $("hint").textContent = HINTS[kind];
    this.taps.out = new Tap(audio, source.stream);
    this.draw();
    await this.place();
  }

  async place() {
    const call = new Call(config.calls_url, this.source);
    this.call = call;
    inspect.call = call;
    setState("offering");
    call.addEventListener("state", ({ detail }) => this.onState(detail.state));
    call.addEventListener("mark", ({ detail }) => {
      views.timeline.mark(detail.name, detail.ms);
      if (detail.name === "offer") views.timeline.detail("offer", `made in ${milliseconds(call.offerMs)} ms`);
    });
    call.addEventListener("sound", ({ detail }) => this.play(detail.stream));
    call.addEventListener("message", ({ detail }) => views.log.add(detail));
    call.addEventListener("server", ({ detail }) => showServer(detail));
    call.addEventListener("end", ({ detail }) => this.onEnd(detail));
    try {
      await call.start();
    } catch (error) {
      notify(notices.refusalNotice(error));
    }
  }

  onState(state) {
    if (state === "ended") return;
    setState(state);
    if (state === "connected" && this.connectedAt === null) {
      this.connectedAt = performance.now();
      this.sample();
      this.timers.push(setInterval(() => this.sample(), SAMPLE_MS));
    }
  }

  async onEnd({ cause, detail }) {
    const lastedMs = this.connectedAt === null ? null : performance.now() - this.connectedAt;
    this.finish();
    const refused = cause === "refused";
    setState(lastedMs === null && cause !== "remote" ? "idle" : "ended", lastedMs === null ? undefined : `Call ended after ${duration(lastedMs)}`);
    views.log.add({ direction: "note", data: cause === "hangup" ? "you hung up" : `ended: ${detail?.message ?? cause}`, ms: this.call.elapsedMs() });
    if (refused) return;
    const server = this.call.url && lastedMs !== null ? await callStats(this.call.url).catch(() => null) : null;
    if (server) showServer(server);
    if (attempt === null) notify(notices.endNotice(cause, server?.close_reason, this.call.relay));
  }

  cancel() {
    if (this.call) this.call.hangUp(this.connectedAt === null ? "cancelled" : "hangup");
    else {
      this.finish();
      setState("idle");
    }
  }

  async play(stream) {
    const speaker = $("speaker");
    speaker.srcObject = stream;
    this.taps.back?.close();
    this.taps.back = new Tap(audio, stream);
    try {
      await speaker.play();
    } catch (error) {
      if (error.name !== "NotAllowedError" || this.over) return;
      notify(notices.mutedPlaybackNotice());
      addEventListener("pointerdown", () => speaker.play().then(() => notify(null)), { once: true });
    }
  }

  draw() {
    if (this.over) return;
    const now = performance.now();
    const outDb = this.taps.out?.levelDb() ?? FLOOR_DB;
    const backDb = this.taps.back?.levelDb() ?? FLOOR_DB;
    views.out.show(outDb, now);
    views.back.show(backDb, now);
    views.scope.push(outDb, backDb, now);
    if (this.connectedAt !== null) $("clock").textContent = duration(now - this.connectedAt);
    requestAnimationFrame(() => this.draw());
  }

  async sample() {
    const sample = await this.sampler.sample(this.call.connection, this.call.server);
    if (this.over) return;
    inspect.sample = sample;
    views.rtt.push([sample.rttMs], sample.rttMs === null ? "–" : `${milliseconds(sample.rttMs)} ms`);
    views.loss.push([sample.lossUp, sample.lossDown], percent(worst(sample.lossUp, sample.lossDown)));
    views.hops.show(sample, this.call.server);
    FIGURES.forEach(([, text], index) => {
      $("figures").children[index].lastElementChild.textContent = text(sample);
    });
  }

  finish() {
    this.over = true;
    attempt = null;
    this.timers.forEach(clearInterval);
    this.taps.out?.close();
    this.taps.back?.close();
    $("speaker").srcObject = null;
    $("mute").setAttribute("aria-pressed", "false");
    $("mute").textContent = "Mute";
    views.out.clear();
    views.back.clear();
  }
}

function begin(kind) {
  if (attempt) return;
  attempt = new Attempt();
  attempt.run(kind);
}

function clearViews() {
  views.timeline.clear();
  views.hops.clear();
  views.log.clear();
  views.scope.clear();
  views.rtt.clear();
  views.loss.clear();
  $("clock").textContent = "0:00";
  for (const figure of $("figures").children) figure.lastElementChild.textContent = "–";
}

function showServer(server) {
  views.timeline.server(server.timeline_ms);
  views.hops.server(server);
}

function worst(...fractions) {
  const known = fractions.filter((fraction) => fraction !== null);
  return known.length ? Math.max(...known) : null;
}

function wire() {
  for (const [name] of FIGURES) {
    const figure = document.createElement("div");
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    term.textContent = name;
    value.textContent = "–";
    figure.append(term, value);
    $("figures").append(figure);
  }
  $("talk").addEventListener("click", () => (attempt ? attempt.cancel() : begin("microphone")));
  $("tone").addEventListener("click", () => begin("tone"));
  $("mute").addEventListener("click", () => {
    const muted = $("mute").getAttribute("aria-pressed") !== "true";
    attempt?.source?.setMuted(muted);
    $("mute").setAttribute("aria-pressed", String(muted));
    $("mute").textContent = muted ? "Muted" : "Mute";
  });
  addEventListener("pagehide", () => attempt?.call?.hangUp("page"));
}

async function configure() {
  try {
    config = { ...config, ...(await loadConfig()) };
  } catch (error) {
    notify(notices.noConfigNotice(error));
  }
  views.hops.backend(config.backend ?? null);
  $("facts").textContent = [config.backend && `backend ${config.backend}`, config.version && `version ${config.version}`].filter(Boolean).join(" · ");
}

wire();
if (!globalThis.RTCPeerConnection) {
  notify(notices.noWebRtcNotice());
  $("talk").disabled = true;
  $("tone").disabled = true;
} else {
  if (!globalThis.isSecureContext) notify(notices.sourceNotice({ code: "insecure" }));
  configure();
}
