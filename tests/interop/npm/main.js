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
  async reading() {
    const reports = [...(await this.connection.getStats()).values()];
    const inbound = reports.find((report) => report.type === "inbound-rtp");
    const outbound = reports.find((report) => report.type === "outbound-rtp");
    return {
      at_ms: inbound.timestamp,
      received: inbound.packetsReceived,
      sent: outbound.packetsSent,
      lost: inbound.packetsLost,
      energy: inbound.totalAudioEnergy,
    };
  },
  playing() {
    return Boolean(this.speaker.srcObject?.active) && !this.speaker.paused;
  },
};
