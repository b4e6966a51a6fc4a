// The stock SDK, unchanged, with what the test needs to ask it from outside.
import "./session.js";
import { OpenAIRealtimeWebRTC } from "@openai/agents-realtime";

globalThis.sdk = {
  events: [],
  async connect(callsUrl) {
    this.speaker = document.createElement("audio");
    this.transport = new OpenAIRealtimeWebRTC({
      baseUrl: callsUrl,
      audioElement: this.speaker,
      changePeerConnection: (connection) => (this.connection = connection),
    });
    this.transport.on("*", (event) => this.events.push(event.type));
    await this.transport.connect({ apiKey: "ek_stock_sdk", model: "gpt-realtime", initialSessionConfig: {} });
    return { callId: this.transport.callId ?? null, status: this.transport.status };
  },
  playing() {
    return Boolean(this.speaker.srcObject?.active) && !this.speaker.paused;
  },
};
