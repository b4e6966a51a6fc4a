/**
 * What the page sends: the microphone, or a melody it makes itself where there is none.
 *
 * 1. A source is {kind, stream, label, setMuted(muted), stop()}; whoever opened it stops it.
 * 2. Failures leave as SourceError with a code the page has words for (see notices.js).
 */

const SOUND = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };

/** `code` is one of: insecure, unsupported, refused, absent, busy, silent, failed. */
export class SourceError extends Error {
  constructor(code, cause) {
    super(cause?.message || code);
    this.name = "SourceError";
    this.code = code;
  }
}

const CODES = {
  NotAllowedError: "refused",
  SecurityError: "refused",
  NotFoundError: "absent",
  OverconstrainedError: "absent",
  NotReadableError: "busy",
  AbortError: "busy",
};

/** `deviceId` is one of enumerateDevices, or empty for the system's choice. */
export async function openMicrophone(deviceId = "") {
  if (!globalThis.isSecureContext) throw new SourceError("insecure");
  if (!navigator.mediaDevices?.getUserMedia) throw new SourceError("unsupported");
  let stream;
  try {
    const device = deviceId ? { deviceId: { exact: deviceId } } : {};
    stream = await navigator.mediaDevices.getUserMedia({ audio: { ...SOUND, ...device }, video: false });
  } catch (error) {
    throw new SourceError(CODES[error.name] ?? "failed", error);
  }
  const [track] = stream.getAudioTracks();
  return {
    kind: "microphone",
    label: track.label || "Microphone",
    stream,
    setMuted(muted) {
      track.enabled = !muted;
    },
    stop() {
      track.stop();
    },
  };
}

/** A looped melody with pauses, so that the echo's delay can be seen and heard. Needs a running AudioContext. */
export function openTone(audio) {
  const player = new AudioBufferSourceNode(audio, { buffer: melody(audio.sampleRate), loop: true });
  const gain = new GainNode(audio, { gain: 1 });
  const sink = new MediaStreamAudioDestinationNode(audio, { channelCount: 1 });
  player.connect(gain).connect(sink);
  player.start();
  return {
    kind: "tone",
    label: "Test tone",
    stream: sink.stream,
    setMuted(muted) {
      gain.gain.setTargetAtTime(muted ? 0 : 1, audio.currentTime, 0.01);
    },
    stop() {
      player.stop();
      player.disconnect();
      sink.stream.getTracks().forEach((track) => track.stop());
    },
  };
}

const NOTES_HZ = [392, 523.25, 659.25, 587.33, 440, 523.25];
const NOTE_S = 0.32;
/** Longer than the pause that ends a turn: most of an echo that waits for it is heard before the melody cuts in. */
const REST_S = 1.88;

function melody(sampleRate) {
  const noteSamples = Math.round(NOTE_S * sampleRate);
  const buffer = new AudioBuffer({
    length: NOTES_HZ.length * noteSamples + Math.round(REST_S * sampleRate),
    numberOfChannels: 1,
    sampleRate,
  });
  const samples = buffer.getChannelData(0);
  NOTES_HZ.forEach((hz, index) => {
    for (let i = 0; i < noteSamples; i += 1) {
      const t = i / sampleRate;
      const envelope = Math.min(1, t / 0.012) * Math.exp(-t * 7) * Math.min(1, (NOTE_S - t) / 0.02);
      const wave = Math.sin(2 * Math.PI * hz * t) + 0.35 * Math.sin(4 * Math.PI * hz * t);
      samples[index * noteSamples + i] = 0.42 * envelope * wave;
    }
  });
  return buffer;
}
