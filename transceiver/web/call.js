/**
 * One call: offer, answer, ICE, DTLS, data channel, and its single end.
 *
 * 1. Times are milliseconds from the offer (performance.now() when it was made).
 * 2. The offer is posted at once, without candidates: the server learns the client's address from its checks.
 * 3. #end is the only way out, runs once, and always says why: {cause, detail}.
 * 4. Events: "state" {state}, "mark" {name, ms}, "sound" {stream}, "message" {direction, data, ms}, "end" {cause, detail}.
 */

import { callStats, endCall, placeCall } from "./signaling.js";

const CONNECT_TIMEOUT_MS = 15_000;
const SERVER_POLL_MS = 1000;
const FIRST_AUDIO_POLL_MS = 8;
const PACKET_MS = 20;
const FIRST_AUDIO_GIVE_UP_MS = 20_000;

/** The moments of a call in their usual order; also the names of the server's `timeline_ms`, but for "offer". */
export const MOMENTS = ["offer", "answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out"];

export class Call extends EventTarget {
  #pc = null;
  #channel = null;
  #timers = new Set();
  #offeredAt = 0;
  #ended = false;

  /** state: offering, connecting, connected, interrupted, ended. */
  state = "offering";
  marks = {};
  /** What it took to make the offer, and what the server says that its answer took. */
  offerMs = null;
  serverMs = null;
  id = null;
  url = null;
  relay = null;
  /** The server's latest statistics, null until the first came. */
  server = null;

  /** `wanted`: {backend, ingress} by name, and the key to call with; null or absent leaves it to the server. */
  constructor(callsUrl, source, wanted = {}) {
    super();
    this.callsUrl = callsUrl;
    this.wanted = wanted;
    this.source = source;
  }

  get connection() {
    return this.#pc;
  }

  /** Resolves when the answer is applied; rejects with SignalingError or DOMException, after which the call has ended. */
  async start() {
    try {
      await this.#exchange();
    } catch (error) {
      if (this.#ended) return;
      this.#end("refused", error);
      throw error;
    }
  }

  hangUp(cause = "hangup") {
    this.#end(cause);
  }

  /** Sends an event; without an open channel it is dropped. */
  send(event) {
    if (this.#channel?.readyState !== "open") return;
    const data = JSON.stringify(event);
    this.#channel.send(data);
    this.#emit("message", { direction: "out", data, ms: this.elapsedMs() });
  }

  /** The local clock's reading, for log lines. */
  elapsedMs() {
    return this.#offeredAt ? performance.now() - this.#offeredAt : 0;
  }

  async #exchange() {
    const began = performance.now();
    const pc = new RTCPeerConnection({ bundlePolicy: "max-bundle" });
    this.#pc = pc;
    this.#listen(pc);
    this.#openChannel(pc.createDataChannel("oai-events"));
    const [track] = this.source.stream.getAudioTracks();
    const sender = pc.addTrack(track, this.source.stream);
    const offer = await pc.createOffer();
    if (this.#ended) return;
    this.#offeredAt = performance.now();
    this.offerMs = this.#offeredAt - began;
    this.#mark("offer", 0);
    const [placed] = await Promise.all([
      placeCall(this.callsUrl, offer.sdp, this.wanted),
      pc.setLocalDescription(offer),
    ]);
    this.url = placed.url;
    this.id = placed.id;
    this.serverMs = placed.serverMs;
    if (this.#ended) {
      endCall(this.url, this.wanted.key); // cancelled meanwhile: only now is it known what to end
      return;
    }
    this.#mark("answer");
    this.relay = relayOf(placed.answer);
    this.#setState("connecting");
    await pc.setRemoteDescription({ type: "answer", sdp: placed.answer });
    if (this.#ended) return;
    this.#watchDtls(sender.transport);
    this.#awaitFirstAudio();
    this.#every(SERVER_POLL_MS, () => this.#askServer());
    this.#after(CONNECT_TIMEOUT_MS, () => {
      if (this.state === "connecting") this.#end("timeout");
    });
  }

  #listen(pc) {
    pc.addEventListener("track", ({ track, streams }) => {
      this.#emit("sound", { stream: streams[0] ?? new MediaStream([track]) });
    });
    pc.addEventListener("iceconnectionstatechange", () => {
      if (["connected", "completed"].includes(pc.iceConnectionState)) this.#mark("ice");
    });
    pc.addEventListener("connectionstatechange", () => {
      const state = pc.connectionState;
      if (state === "connected") {
        this.#markSecured();
        this.#setState("connected");
        this.#askServer();
      } else if (state === "disconnected" && this.state === "connected") {
        this.#setState("interrupted");
      } else if (state === "failed" || state === "closed") {
        this.#end(this.state === "connecting" ? "unreachable" : "lost");
      }
    });
  }

  #watchDtls(transport) {
    if (!transport) return;
    const look = () => {
      if (transport.state === "connected") this.#markSecured();
      if (transport.state === "closed") this.#end("remote");
      if (transport.state === "failed") this.#end("insecure");
    };
    transport.addEventListener("statechange", look);
    look();
  }

  #openChannel(channel) {
    this.#channel = channel;
    channel.addEventListener("open", () => {
      this.#emit("message", { direction: "note", data: "data channel open", ms: this.elapsedMs() });
    });
    channel.addEventListener("message", ({ data }) => {
      this.#markSecured();
      this.#mark("channel");
      this.#emit("message", { direction: "in", data, ms: this.elapsedMs() });
    });
    channel.addEventListener("close", () => this.#end("remote"));
  }

  /** getSynchronizationSources() is filled when the first packet is handed to playout, so it dates what the user hears. */
  #awaitFirstAudio() {
    const [receiver] = this.#pc.getReceivers();
    const until = performance.now() + FIRST_AUDIO_GIVE_UP_MS;
    let asking = false;
    const look = async () => {
      if (!("first_audio_out" in this.marks) && receiver.getSynchronizationSources().length) {
        this.#markSecured();
        this.#mark("first_audio_out");
      }
      if (!("first_audio_in" in this.marks) && "dtls" in this.marks && !asking) {
        asking = true;
        const sentAt = await firstSentAt(this.#pc);
        asking = false;
        if (sentAt !== null) this.#mark("first_audio_in", this.#between(sentAt - this.#offeredAt));
      }
      const done = "first_audio_in" in this.marks && "first_audio_out" in this.marks;
      if (done || performance.now() > until) this.#stop(timer);
    };
    const timer = this.#every(FIRST_AUDIO_POLL_MS, look);
  }

  /** A reckoned moment of sending lies after the keys were agreed and before the echo was heard. */
  #between(ms) {
    return Math.max(this.marks.dtls, Math.min(ms, this.marks.first_audio_out ?? Infinity));
  }

  async #askServer() {
    if (!this.url || this.#ended) return;
    try {
      this.server = await callStats(this.url, this.wanted.key);
    } catch (error) {
      if (error.status === 404 && "dtls" in this.marks) this.#end("remote");
      return;
    }
    this.#emit("server", this.server);
    if (this.server.state === "closed") this.#end("remote");
  }

  #end(cause, detail = null) {
    if (this.#ended) return;
    this.#ended = true;
    for (const timer of this.#timers) clearInterval(timer);
    this.source.stop();
    const close = () => {
      this.#channel?.close();
      this.#pc?.close();
    };
    // The server hears of it by HTTP first, and so records why; a closed connection tells it less.
    if (cause === "remote") close();
    else endCall(this.url, this.wanted.key).then(close);
    this.#setState("ended");
    this.#emit("end", { cause, detail });
  }

  #mark(name, ms = this.elapsedMs()) {
    if (this.#ended || name in this.marks) return;
    this.marks[name] = ms;
    this.#emit("mark", { name, ms });
  }

  /** Who has the keys has a path, and who has sound or an event has the keys: a busy browser tells its events late. */
  #markSecured() {
    this.#mark("ice");
    this.#mark("dtls");
  }

  #setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.#emit("state", { state });
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #every(ms, action) {
    const timer = setInterval(action, ms);
    this.#timers.add(timer);
    return timer;
  }

  #after(ms, action) {
    this.#timers.add(setTimeout(action, ms));
  }

  #stop(timer) {
    clearInterval(timer);
    this.#timers.delete(timer);
  }
}

/**
 * When the first packet was sent, on performance.now()'s clock, or null when none was.
 *
 * Browsers hand out statistics that are up to 50 ms old, so the moment is reckoned back from the report's own time and
 * its count of packets.
 */
async function firstSentAt(pc) {
  for (const report of (await pc.getStats()).values()) {
    if (report.type !== "outbound-rtp" || !report.packetsSent) continue;
    return report.timestamp - performance.timeOrigin - (report.packetsSent - 1) * PACKET_MS;
  }
  return null;
}

/** The relay's address as the answer's first candidate tells it, for messages while nothing is selected yet. */
function relayOf(answer) {
  const match = /^a=candidate:\S+ \d+ udp \d+ (\S+) (\d+)/im.exec(answer);
  return match ? { address: match[1], port: Number(match[2]) } : null;
}
