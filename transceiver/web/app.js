/**
 * The demo page: its buttons, its one attempt at a time, its words.
 *
 * 1. body[data-state] is the page's state: idle, asking, offering, connecting, connected, interrupted, ended.
 * 2. `voiceRelay` in the console is the latest attempt: its call, last sample, sound levels.
 */

import { Attempt } from "./attempt.js";
import * as notices from "./notices.js";
import { Settings } from "./settings.js";
import { loadConfig } from "./signaling.js";
import { TalkKey } from "./talkkey.js";
import { Views } from "./views.js";
import { duration } from "./words.js";

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

/** Web Audio can be switched off by a setting: then there are calls, but no tone and no meters. */
const HAS_SOUND = Boolean(globalThis.AudioContext);

const byId = (id) => document.getElementById(id);
const views = new Views(byId);
let config = { calls_url: DEFAULT_CALLS_URL };
let audio = null;
let running = null;
let latest = null;
const settings = new Settings(byId);
const talkKey = new TalkKey(byId("hold"), () => running);

/** What an attempt may do to the page. */
const page = {
  state(state, lastedMs = null) {
    const live = LIVE.has(state);
    document.body.dataset.state = state;
    byId("status-text").textContent = lastedMs === null ? STATUS[state] : `Call ended after ${duration(lastedMs)}`;
    byId("talk").textContent = !live ? "Talk" : state === "connected" || state === "interrupted" ? "Hang up" : "Cancel";
    byId("talk").classList.toggle("danger", live);
    byId("tone").hidden = live || !HAS_SOUND;
    byId("mute").hidden = !live || state === "asking" || settings.pushToTalk;
    byId("hold").hidden = !live || !settings.pushToTalk;
    for (const name of ["key", "backend", "entry", "microphone"]) byId(name).disabled = live;
  },
  notice(notice) {
    notices.showNotice(byId("notice"), notice);
  },
  hint(text) {
    byId("hint").textContent = text;
  },
  over(attempt) {
    if (running === attempt) running = null;
    talkKey.reset();
    showMuted(false);
  },
  isCurrent(attempt) {
    return latest === attempt;
  },
};

function begin(kind) {
  if (running) return;
  if (HAS_SOUND) audio ??= new AudioContext({ latencyHint: "interactive" });
  page.notice(null);
  page.hint(notices.HINTS[kind]);
  byId("meter-out-name").textContent = kind === "tone" ? "Tone" : "You";
  running = new Attempt(page, views, audio, settings);
  latest = running;
  globalThis.voiceRelay = latest;
  running.run(kind, config.calls_url, byId("speaker"));
}

function showMuted(muted) {
  byId("mute").setAttribute("aria-pressed", String(muted));
  byId("mute").textContent = muted ? "Muted" : "Mute";
}

function wire() {
  byId("talk").addEventListener("click", () => (running ? running.cancel() : begin("microphone")));
  byId("tone").addEventListener("click", () => {
    begin("tone");
    byId("talk").focus(); // the pressed button is gone, and with it the focus
  });
  byId("mute").addEventListener("click", () => {
    const muted = byId("mute").getAttribute("aria-pressed") !== "true";
    running?.source?.setMuted(muted);
    showMuted(muted);
  });
  settings.addEventListener("change", ({ detail: { what } }) => onSetting(what));
  addEventListener("pagehide", () => running?.call?.hangUp("page"));
}

function onSetting(what) {
  if (what === "backend") views.backend(settings.backend, config.version, notices.backendWords(settings.backend));
  if (what === "session" || what === "taking") running?.applySettings();
  if (what === "taking") {
    talkKey.reset();
    showMuted(false);
    page.state(document.body.dataset.state);
  }
  if (what === "speaker") byId("speaker").setSinkId?.(settings.loudspeaker).catch(() => {});
}

async function configure() {
  try {
    config = { ...config, ...(await loadConfig()) };
  } catch (error) {
    page.notice(notices.noConfigNotice(error));
  }
  settings.offer(config);
  settings.listDevices();
}

wire();
byId("tone").hidden = !HAS_SOUND;
if (!globalThis.RTCPeerConnection) {
  page.notice(notices.noWebRtcNotice());
  byId("talk").disabled = true;
  byId("tone").disabled = true;
} else {
  if (!globalThis.isSecureContext) page.notice(notices.sourceNotice({ code: "insecure" }));
  configure();
}
