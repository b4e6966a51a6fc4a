/**
 * Sound levels of both directions: one analyser each, a meter that falls like a needle, and a mirrored history.
 *
 * 1. Levels are dBFS of the last 43 ms, floored at -60.
 * 2. What assistive technology hears of a meter changes at most once a second; the drawing follows every frame.
 */

export const FLOOR_DB = -60;
const WINDOW_SAMPLES = 2048;
const FALL_DB_PER_S = 55;
const PEAK_HOLD_MS = 900;
const PEAK_FALL_DB_PER_S = 24;
const SPEAK_EVERY_MS = 1000;
const SILENT_DB = -58;

export class Tap {
  #analyser;
  #node;
  #samples = new Float32Array(WINDOW_SAMPLES);

  constructor(audio, stream) {
    this.#analyser = new AnalyserNode(audio, { fftSize: WINDOW_SAMPLES });
    this.#node = new MediaStreamAudioSourceNode(audio, { mediaStream: stream });
    this.#node.connect(this.#analyser);
  }

  levelDb() {
    this.#analyser.getFloatTimeDomainData(this.#samples);
    let sum = 0;
    for (const sample of this.#samples) sum += sample * sample;
    return Math.max(FLOOR_DB, 10 * Math.log10(sum / WINDOW_SAMPLES + 1e-12));
  }

  close() {
    this.#node.disconnect();
  }
}

export class Meter {
  #root;
  #fill;
  #peakMark;
  #value;
  #shownDb = FLOOR_DB;
  #peakDb = FLOOR_DB;
  #peakAt = 0;
  #drawnAt = 0;
  #spokenAt = 0;

  constructor(root) {
    this.#root = root;
    this.#fill = root.querySelector(".meter-fill");
    this.#peakMark = root.querySelector(".meter-peak");
    this.#value = root.parentElement.querySelector(".meter-value");
    this.#paint(0, true);
  }

  show(db, now) {
    const seconds = Math.min(0.2, (now - this.#drawnAt) / 1000);
    this.#drawnAt = now;
    this.#shownDb = Math.max(db, this.#shownDb - FALL_DB_PER_S * seconds);
    if (db >= this.#peakDb) {
      this.#peakDb = db;
      this.#peakAt = now;
    } else if (now - this.#peakAt > PEAK_HOLD_MS) {
      this.#peakDb = Math.max(db, this.#peakDb - PEAK_FALL_DB_PER_S * seconds);
    }
    this.#paint(now, false);
  }

  clear() {
    this.#shownDb = FLOOR_DB;
    this.#peakDb = FLOOR_DB;
    this.#paint(0, true);
  }

  #paint(now, speak) {
    const fraction = (db) => Math.min(1, Math.max(0, 1 - db / FLOOR_DB));
    this.#fill.style.setProperty("--level", fraction(this.#shownDb).toFixed(4));
    this.#peakMark.style.setProperty("--level", fraction(this.#peakDb).toFixed(4));
    this.#peakMark.hidden = this.#peakDb <= SILENT_DB;
    if (!speak && now - this.#spokenAt < SPEAK_EVERY_MS) return;
    this.#spokenAt = now;
    const silent = this.#peakDb <= SILENT_DB;
    this.#value.textContent = silent ? "−∞ dB" : `${String(Math.round(this.#peakDb)).replace("-", "−")} dB`;
    this.#root.setAttribute("aria-valuenow", String(Math.round(this.#peakDb)));
    this.#root.setAttribute("aria-valuetext", silent ? "silent" : `${Math.round(this.#peakDb)} decibels`);
  }
}
