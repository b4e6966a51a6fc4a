/**
 * One press of Talk: a source, a call, its sound, its samples, until the end.
 *
 * 1. Everything that an attempt opens, #finish closes; nothing of it outlives that.
 * 2. It tells `page` what happened: state(name), notice(notice), hint(text), over(attempt).
 * 3. A cancelled attempt goes on silently until what it awaits returns, then gives it back.
 */

import { Call } from "./call.js";
import { Conversation } from "./conversation.js";
import { FLOOR_DB, Tap } from "./levels.js";
import * as notices from "./notices.js";
import { Sampler } from "./sampler.js";
import { callStats } from "./signaling.js";
import { SourceError, openMicrophone, openTone } from "./sources.js";
import { milliseconds } from "./words.js";

const SAMPLE_MS = 1000;
const SOUND_START_MS = 2000;

export class Attempt {
  #page;
  #views;
  #audio;
  #settings;
  #taps = {};
  #timer = null;
  #heldBack = new AbortController();
  #sampler = new Sampler();
  #connectedAt = null;
  #over = false;

  source = null;
  call = null;
  conversation = null;
  /** What sampler.js read last, and the levels drawn last: {outDb, backDb}. */
  sample = null;
  levels = null;

  /** `audio` is the page's AudioContext, or null in a browser that has none. */
  constructor(page, views, audio, settings) {
    this.#page = page;
    this.#views = views;
    this.#audio = audio;
    this.#settings = settings;
    this.conversation = new Conversation(
      (turn) => views.turn(turn),
      (floor) => views.floor(floor),
    );
  }

  /** Sends an event to the server; nothing without a call. */
  send(event) {
    this.call?.send(event);
  }

  /** What the visitor chose has changed, or the session has just begun. */
  applySettings() {
    const update = this.#settings.sessionUpdate();
    if (update) this.send(update);
    this.source?.setMuted(this.#settings.pushToTalk);
  }

  /** `kind` is "microphone" or "tone". */
  async run(kind, callsUrl, speaker) {
    this.#views.clear();
    this.#page.state(kind === "microphone" ? "asking" : "offering");
    const sound = this.#startSound();
    try {
      const source = await (kind === "microphone" ? openMicrophone(this.#settings.microphone) : this.#openTone(sound));
      if (this.#over) return source.stop();
      source.setMuted(this.#settings.pushToTalk); // the session begins later, and the microphone is heard before
      this.source = source;
    } catch (error) {
      if (this.#over) return;
      this.#finish();
      this.#page.state("idle");
      this.#page.notice(notices.sourceNotice(error));
      return;
    }
    this.#settings.listDevices();
    this.#taps.out = this.#tap(this.source.stream);
    this.#draw();
    sound.then((running) => running || this.#over || this.#page.hint(notices.NO_METERS));
    await this.#place(callsUrl, speaker);
  }

  cancel() {
    if (this.call) {
      this.call.hangUp(this.#connectedAt === null ? "cancelled" : "hangup");
    } else {
      this.#finish();
      this.#page.state("idle");
    }
  }

  /**
   * Resolves to whether the sound engine runs: without an output device some browsers never start it, and an iPhone
   * refuses while a telephone call has it.
   */
  async #startSound() {
    if (!this.#audio) return false;
    const late = new Promise((resolve) => setTimeout(resolve, SOUND_START_MS));
    await Promise.race([this.#audio.resume().catch(() => {}), late]);
    return this.#audio.state === "running";
  }

  /** Returns the stream's Tap, or null where there is none to be had: Firefox taps no stream of another sample rate. */
  #tap(stream) {
    if (!this.#audio) return null;
    try {
      return new Tap(this.#audio, stream);
    } catch {
      this.#page.hint(notices.NO_METERS);
      return null;
    }
  }

  async #openTone(sound) {
    if (!(await sound)) throw new SourceError("silent");
    return openTone(this.#audio);
  }

  async #place(callsUrl, speaker) {
    const { otherBackend: backend, entry: ingress, key } = this.#settings;
    const call = new Call(callsUrl, this.source, { backend, ingress, key });
    this.call = call;
    this.#page.state("offering");
    call.addEventListener("state", ({ detail }) => this.#onState(detail.state));
    call.addEventListener("mark", ({ detail: { name, ms } }) => {
      this.#views.mark(name, ms, name === "offer" ? `made in ${milliseconds(call.offerMs)} ms` : null);
    });
    call.addEventListener("sound", ({ detail }) => this.#play(detail.stream, speaker));
    call.addEventListener("message", ({ detail }) => this.#onMessage(detail));
    call.addEventListener("server", ({ detail }) => this.#views.server(detail));
    call.addEventListener("end", ({ detail }) => this.#onEnd(detail, speaker));
    try {
      await call.start();
    } catch (error) {
      this.#page.notice(notices.refusalNotice(error));
    }
  }

  #onState(state) {
    if (state === "ended") return;
    this.#page.state(state);
    if (state !== "connected" || this.#connectedAt !== null) return;
    this.#connectedAt = performance.now();
    this.#takeSample();
    this.#timer = setInterval(() => this.#takeSample(), SAMPLE_MS);
  }

  #onMessage(message) {
    this.#views.message(message);
    if (message.direction !== "in") return;
    let event;
    try {
      event = JSON.parse(message.data);
    } catch {
      return;
    }
    if (event?.type === "session.created" || event?.type === "session.updated") this.#settings.learn(event.session);
    if (event?.type === "session.created") this.applySettings();
    this.conversation.take(event ?? {});
  }

  async #onEnd({ cause, detail }, speaker) {
    const connected = this.#connectedAt !== null;
    const lastedMs = connected ? performance.now() - this.#connectedAt : null;
    const { call } = this;
    speaker.srcObject = null;
    this.#finish();
    this.#page.state(connected || cause === "remote" ? "ended" : "idle", lastedMs);
    const text = cause === "hangup" ? "you hung up" : `ended: ${detail?.message ?? cause}`;
    this.#views.message({ direction: "note", data: text, ms: call.elapsedMs() });
    if (cause === "refused") return;
    const notice = (reason) => notices.endNotice(cause, reason, call.relay);
    const server = call.url && cause !== "page" ? await callStats(call.url, call.wanted.key).catch(() => null) : null;
    if (!this.#page.isCurrent(this)) return;
    if (server) this.#views.server(server);
    this.#page.notice(notice(server?.close_reason));
  }

  async #play(stream, speaker) {
    speaker.srcObject = stream;
    if (this.#settings.loudspeaker) speaker.setSinkId(this.#settings.loudspeaker).catch(() => {});
    this.#taps.back?.close();
    this.#taps.back = this.#tap(stream);
    try {
      await speaker.play();
    } catch (error) {
      if (error.name === "NotAllowedError" && !this.#over) this.#playOnGesture(speaker);
    }
  }

  /** The end of a touch and a key count as the user's will everywhere; its beginning does not. */
  #playOnGesture(speaker) {
    this.#page.notice(notices.heldBackNotice());
    const retry = async () => {
      try {
        await speaker.play();
      } catch {
        return;
      }
      this.#heldBack.abort();
      if (!this.#over) this.#page.notice(null);
    };
    for (const name of ["pointerup", "keydown"]) addEventListener(name, retry, { signal: this.#heldBack.signal });
  }

  #draw() {
    if (this.#over) return;
    const now = performance.now();
    const outDb = this.#taps.out?.levelDb() ?? FLOOR_DB;
    const backDb = this.#taps.back?.levelDb() ?? FLOOR_DB;
    this.levels = { outDb, backDb };
    this.#views.levels(outDb, backDb, now);
    if (this.#connectedAt !== null) this.#views.clock(now - this.#connectedAt);
    requestAnimationFrame(() => this.#draw());
  }

  async #takeSample() {
    const sample = await this.#sampler.sample(this.call.connection, this.call.server);
    if (this.#over) return;
    this.sample = sample;
    this.#views.sample(sample, this.call.server);
  }

  #finish() {
    this.#over = true;
    clearInterval(this.#timer);
    this.#heldBack.abort();
    this.#taps.out?.close();
    this.#taps.back?.close();
    this.#views.silence();
    this.conversation.end();
    this.#views.floor(null);
    this.#page.over(this);
  }
}
