/**
 * What the visitor chooses: key, backend, entry, voice, how turns are taken, and the devices.
 *
 * 1. What was never touched is left to the server: its own configuration may know better.
 * 2. Key, backend, entry and microphone count from the next call on; everything else at once. `?ingress=NAME` of the page
 *    chooses an entry, too.
 * 3. "change" is emitted with {what: "session" | "taking" | "speaker"}.
 */

/** Backends without turns: they only send sound back. */
const WITHOUT_TURNS = new Set(["loopback"]);

export class Settings extends EventTarget {
  #byId;
  #touched = new Set();

  constructor(byId) {
    super();
    this.#byId = byId;
    byId("backend").addEventListener("change", () => this.#follow());
    byId("voice").addEventListener("change", () => this.#touch("voice", "session"));
    byId("silence").addEventListener("input", () => this.#showSilence());
    byId("silence").addEventListener("change", () => this.#touch("silence", "session"));
    for (const name of ["hands-free", "push-to-talk"]) {
      byId(name).addEventListener("change", () => {
        this.#follow();
        this.#touch("taking", "taking");
      });
    }
    byId("loudspeaker").addEventListener("change", () => this.#emit("speaker"));
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.listDevices());
    this.#showSilence();
  }

  /** The server's configuration: whether calls need a key, which backends there are, which ways in (name to addresses). */
  offer({ needs_key = false, backends = [], ingresses = {} }) {
    this.#byId("key-field").hidden = !needs_key;
    if (needs_key) this.#byId("settings").open = true;
    const options = backends.map((name) => new Option(name, name));
    this.#byId("backend").replaceChildren(...options);
    this.#byId("backend-field").hidden = backends.length < 2;
    const entries = Object.keys(ingresses);
    this.#byId("entry").replaceChildren(new Option("The nearest", ""), ...entries.map((name) => new Option(name, name)));
    this.#byId("entry-field").hidden = entries.length < 2;
    const wanted = new URLSearchParams(location.search).get("ingress");
    if (entries.includes(wanted)) this.#byId("entry").value = wanted;
    this.#follow();
  }

  /** An API key or a client secret; it stays in this page and goes with its calls only. */
  get key() {
    return this.#byId("key").value.trim() || null;
  }

  get backend() {
    return this.#byId("backend").value || null;
  }

  /** What a call must ask for: null for the server's default, its first. */
  get otherBackend() {
    return this.#byId("backend").selectedIndex > 0 ? this.backend : null;
  }

  /** The ingress that a call must ask for: null for the server's own choice. */
  get entry() {
    return this.#byId("entry").value || null;
  }

  get hasTurns() {
    return this.backend === null || !WITHOUT_TURNS.has(this.backend);
  }

  get pushToTalk() {
    return this.hasTurns && this.#byId("push-to-talk").checked;
  }

  get microphone() {
    return this.#byId("microphone").value;
  }

  get loudspeaker() {
    return this.#byId("loudspeaker").value;
  }

  /** The `session.update` that says what was chosen, or null when nothing was. */
  sessionUpdate() {
    if (!this.hasTurns) return null;
    const audio = {};
    const voice = this.#byId("voice").value.trim();
    if (this.#touched.has("voice") && voice) audio.output = { voice };
    if (this.pushToTalk) audio.input = { turn_detection: null };
    else if (this.#touched.has("silence") || this.#touched.has("taking")) {
      const silence_duration_ms = Number(this.#byId("silence").value);
      audio.input = { turn_detection: { type: "server_vad", silence_duration_ms } };
    }
    return Object.keys(audio).length ? { type: "session.update", session: { type: "realtime", audio } } : null;
  }

  /** The session as the server has it: what the visitor has not chosen is shown as it is there. */
  learn(session) {
    const silenceMs = session?.audio?.input?.turn_detection?.silence_duration_ms;
    if (!this.#touched.has("silence") && Number.isFinite(silenceMs)) this.#byId("silence").value = String(silenceMs);
    const voice = session?.audio?.output?.voice;
    if (!this.#touched.has("voice") && typeof voice === "string") this.#byId("voice").placeholder = voice;
    this.#showSilence();
  }

  /** Names are known once the microphone was given. */
  async listDevices() {
    const devices = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
    this.#list("microphone", devices.filter(({ kind }) => kind === "audioinput"));
    const outputs = "setSinkId" in HTMLMediaElement.prototype ? devices.filter(({ kind }) => kind === "audiooutput") : [];
    this.#list("loudspeaker", outputs);
  }

  #list(name, devices) {
    const select = this.#byId(name);
    const chosen = select.value;
    const named = devices.filter(({ deviceId, label }) => deviceId && deviceId !== "default" && label);
    select.replaceChildren(new Option("The system's choice", ""), ...named.map(({ deviceId, label }) => new Option(label, deviceId)));
    select.value = named.some(({ deviceId }) => deviceId === chosen) ? chosen : "";
    this.#byId(`${name}-field`).hidden = named.length === 0;
  }

  #follow() {
    for (const name of ["voice-field", "taking-field"]) this.#byId(name).hidden = !this.hasTurns;
    this.#byId("silence-field").hidden = !this.hasTurns || this.pushToTalk;
    this.#emit("backend");
  }

  #showSilence() {
    const text = `${(Number(this.#byId("silence").value) / 1000).toFixed(1)} s`;
    this.#byId("silence-value").textContent = text;
    this.#byId("silence").setAttribute("aria-valuetext", text);
  }

  #touch(name, what) {
    this.#touched.add(name);
    this.#emit(what);
  }

  #emit(what) {
    this.dispatchEvent(new CustomEvent("change", { detail: { what } }));
  }
}
