// A conversation by the stock SDK's session: an agent with one tool, as its users write it, and what the test asks about it.
import { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const SAMPLE_MS = 5;
const LOUD_DB = -40;

globalThis.talk = {
  events: [],
  toolCalls: [],
  interruptedAt: null,
  failures: [],

  async connect(callsUrl) {
    const secret = await this.mintSecret(callsUrl);
    const weather = tool({
      name: "weather",
      description: "Says how the weather is.",
      parameters: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        this.toolCalls.push(city);
        return `rain in ${city}`;
      },
    });
    const agent = new RealtimeAgent({ name: "tester", instructions: "Be brief.", tools: [weather] });
    this.speaker = document.createElement("audio");
    this.transport = new OpenAIRealtimeWebRTC({
      baseUrl: callsUrl,
      audioElement: this.speaker,
      changePeerConnection: (connection) => {
        this.connection = connection;
        connection.addEventListener("track", ({ streams }) => this.listen(streams[0]));
        return connection;
      },
    });
    this.session = new RealtimeSession(agent, { transport: this.transport, model: "gpt-realtime" });
    this.transport.on("*", (event) => this.events.push({ ...event, at: performance.now() }));
    this.session.on("error", ({ error }) => this.failures.push(JSON.stringify(error) ?? String(error)));
    const began = performance.now();
    await this.session.connect({ apiKey: secret });
    this.connectMs = performance.now() - began;
    this.callUrl = `${callsUrl}/${this.transport.callId}`;
    this.secret = secret;
    return { callId: this.transport.callId, status: this.transport.status };
  },

  async mintSecret(callsUrl) {
    const url = new URL("client_secrets", callsUrl);
    const made = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
    return (await made.json()).value;
  },

  say(text) {
    this.saidAt = performance.now();
    this.session.sendMessage(text);
  },

  send(event) {
    this.transport.sendEvent(event);
  },

  interrupt() {
    this.interruptedAt = performance.now();
    this.session.interrupt();
  },

  /** The user's voice, as the model's turn detection tells it: no word of the client's is needed. */
  speakOver() {
    this.interruptedAt = performance.now();
    this.send({ type: "test.speak" });
  },

  types() {
    return this.events.map(({ type }) => type);
  },

  count(type) {
    return this.types().filter((known) => known === type).length;
  },

  history() {
    return this.session.history.map((item) => ({
      role: item.role ?? item.type,
      status: item.status,
      text: item.content?.map((part) => part.transcript ?? part.text ?? "").join("") ?? item.output ?? "",
    }));
  },

  listen(stream) {
    const audio = (this.audio ??= new AudioContext());
    audio.resume();
    const analyser = new AnalyserNode(audio, { fftSize: 256 });
    new MediaStreamAudioSourceNode(audio, { mediaStream: stream }).connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    this.loudAt = [];
    setInterval(() => {
      analyser.getFloatTimeDomainData(samples);
      const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
      if (10 * Math.log10(power) > LOUD_DB) this.loudAt.push(performance.now());
    }, SAMPLE_MS);
  },

  /** Whether the model was heard since the last `say`. */
  answered() {
    return this.loudAt?.at(-1) > this.saidAt;
  },

  /** Whether the model was heard within the last `ms`. */
  hears(ms = 200) {
    return performance.now() - (this.loudAt?.at(-1) ?? -Infinity) < ms;
  },

  /** Milliseconds from the interruption until the last sound that was heard. */
  silenceAfterMs() {
    return this.loudAt.at(-1) - this.interruptedAt;
  },

  async stats() {
    const response = await fetch(`${this.callUrl}/stats`, { headers: { Authorization: `Bearer ${this.secret}` } });
    return response.json();
  },

  async hangUpByHttp() {
    const headers = { Authorization: `Bearer ${this.secret}` };
    return (await fetch(`${this.callUrl}/hangup`, { method: "POST", headers })).status;
  },
};
