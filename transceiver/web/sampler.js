/**
 * What getStats says, once a second, as rates and ratios of that second.
 *
 * 1. Any figure a browser does not report is null, never 0.
 * 2. Silence where nothing was sent, as between two turns, is not concealed sound.
 * 3. Counters are compared with the sample before; a first sample has no rates.
 */

/** Round-trip time and loss towards the server fall back to what the server measured: browsers learn them from RTCP. */
export class Sampler {
  #before = null;

  async sample(pc, server) {
    const reports = [...(await pc.getStats()).values()];
    const counters = countersOf(reports);
    const before = this.#before;
    this.#before = counters;
    const pair = selectedPair(reports);
    const rate = (name) => perSecond(counters, before, name);
    return {
      rttMs: finest(toMs(pair.pair?.currentRoundTripTime), toMs(counters.remoteRtt), server?.rtt_ms ?? null),
      lossUp: counters.lossUp ?? server?.loss ?? null,
      lossDown: lossOf(counters, before),
      packetsIn: rate("packetsReceived"),
      packetsOut: rate("packetsSent"),
      jitterMs: toMs(counters.jitter),
      bufferMs: bufferOf(counters, before),
      concealed: concealedOf(counters, before),
      codec: counters.codec,
      local: pair.local,
      remote: pair.remote,
    };
  }
}

/** Returns the selected {pair, local, remote}; candidates are {address, port, protocol, type} or null. */
export function selectedPair(reports) {
  const byId = new Map(reports.map((report) => [report.id, report]));
  const transport = reports.find((report) => report.type === "transport" && report.selectedCandidatePairId);
  const pair =
    byId.get(transport?.selectedCandidatePairId) ??
    reports.find((report) => report.type === "candidate-pair" && report.selected) ??
    reports.find((report) => report.type === "candidate-pair" && report.nominated && report.state === "succeeded") ??
    null;
  return { pair, local: candidate(byId.get(pair?.localCandidateId)), remote: candidate(byId.get(pair?.remoteCandidateId)) };
}

function candidate(report) {
  if (!report) return null;
  return {
    address: report.address ?? report.ip ?? null,
    port: report.port ?? null,
    protocol: report.protocol ?? null,
    type: report.candidateType ?? null,
  };
}

function countersOf(reports) {
  const of = (type) => reports.find((report) => report.type === type && (report.kind ?? "audio") === "audio") ?? {};
  const inbound = of("inbound-rtp");
  const outbound = of("outbound-rtp");
  const remote = of("remote-inbound-rtp");
  const codec = reports.find((report) => report.type === "codec" && report.id === (inbound.codecId ?? outbound.codecId));
  return {
    at: inbound.timestamp ?? outbound.timestamp ?? 0,
    packetsReceived: inbound.packetsReceived ?? null,
    packetsLost: inbound.packetsLost ?? null,
    packetsSent: outbound.packetsSent ?? null,
    jitter: inbound.jitter ?? null,
    bufferDelay: inbound.jitterBufferDelay ?? null,
    bufferEmitted: inbound.jitterBufferEmittedCount ?? null,
    concealedSamples: inbound.concealedSamples === undefined ? null : inbound.concealedSamples - (inbound.silentConcealedSamples ?? 0),
    totalSamples: inbound.totalSamplesReceived ?? null,
    remoteRtt: remote.roundTripTime ?? null,
    lossUp: remote.fractionLost ?? null,
    codec: codec?.mimeType ? codecName(codec) : null,
  };
}

function codecName({ mimeType, clockRate }) {
  const name = mimeType.split("/").pop();
  return `${name.toLowerCase() === "opus" ? "Opus" : name} ${clockRate / 1000} kHz`;
}

function difference(now, before, name) {
  return before === null || now[name] === null || before[name] === null ? null : now[name] - before[name];
}

function perSecond(now, before, name) {
  const change = difference(now, before, name);
  return change === null || now.at <= before.at ? null : (change * 1000) / (now.at - before.at);
}

function ratio(part, whole) {
  return part === null || whole === null || whole <= 0 ? null : Math.min(1, Math.max(0, part / whole));
}

function lossOf(now, before) {
  const lost = difference(now, before, "packetsLost");
  const received = difference(now, before, "packetsReceived");
  return lost === null || received === null ? null : ratio(lost, lost + received) ?? 0;
}

function bufferOf(now, before) {
  const delay = difference(now, before, "bufferDelay");
  const emitted = difference(now, before, "bufferEmitted");
  return delay === null || !emitted ? null : (delay / emitted) * 1000;
}

function concealedOf(now, before) {
  return ratio(difference(now, before, "concealedSamples"), difference(now, before, "totalSamples"));
}

/** Browsers tell whole milliseconds, so on a short way theirs is 0 and the next source knows better. */
function finest(...values) {
  return values.find((value) => value > 0) ?? values.find((value) => value !== null) ?? null;
}

function toMs(seconds) {
  return seconds === null || seconds === undefined ? null : seconds * 1000;
}
