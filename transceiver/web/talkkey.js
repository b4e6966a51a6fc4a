/**
 * Push to talk: while the key is held the microphone is open, and letting go ends the turn.
 *
 * 1. Pressing interrupts the model, as speaking does with hands free.
 * 2. The last of the sound is still on its way when the key is let go: the turn is committed TAIL_MS later.
 * 3. Any pointer, Space and Enter hold it; leaving the page's focus lets go.
 */

const TAIL_MS = 250;

export class TalkKey {
  #button;
  #attempt;
  #held = false;
  #release = null;

  /** `attempt()` returns the running attempt, or null. */
  constructor(button, attempt) {
    this.#button = button;
    this.#attempt = attempt;
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      this.#press();
    });
    for (const name of ["pointerup", "pointercancel", "blur"]) button.addEventListener(name, () => this.#letGo());
    button.addEventListener("keydown", (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      if (!event.repeat) this.#press();
    });
    button.addEventListener("keyup", (event) => {
      if (event.key === " " || event.key === "Enter") this.#letGo();
    });
    button.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  /** Forgets a key that is held: the call is over, or takes its turns otherwise. */
  reset() {
    clearTimeout(this.#release);
    this.#release = null;
    this.#show(false);
  }

  #press() {
    const attempt = this.#attempt();
    if (this.#held || !attempt) return;
    if (this.#release !== null) this.#commit(attempt);
    this.#show(true);
    if (attempt.conversation.modelSpeaks) {
      attempt.send({ type: "response.cancel" });
      attempt.send({ type: "output_audio_buffer.clear" });
    }
    attempt.send({ type: "input_audio_buffer.clear" });
    attempt.source?.setMuted(false);
    attempt.conversation.held(true);
  }

  #letGo() {
    const attempt = this.#attempt();
    if (!this.#held) return;
    this.#show(false);
    if (!attempt) return;
    attempt.conversation.held(false);
    this.#release = setTimeout(() => this.#commit(attempt), TAIL_MS);
  }

  #commit(attempt) {
    clearTimeout(this.#release);
    this.#release = null;
    attempt.source?.setMuted(true);
    attempt.send({ type: "input_audio_buffer.commit" });
    attempt.send({ type: "response.create" });
  }

  #show(held) {
    this.#held = held;
    this.#button.setAttribute("aria-pressed", String(held));
    this.#button.textContent = held ? "Listening to you" : "Hold to talk";
  }
}
