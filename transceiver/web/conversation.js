/**
 * The conversation of one call, read from its events: who has the floor, and what was said.
 *
 * 1. A turn is {id, who: "you" | "model" | "server", text, note, cut}; `onTurn` gets it whenever it has changed.
 * 2. The floor is "listening", "you", "thinking" or "model", from what is heard, not from what is generated.
 * 3. Sound that was cut leaves its turn marked: what follows of its text was never heard.
 */

import { seconds } from "./words.js";

export class Conversation {
  #turns = new Map();
  #items = new Map(); // response id → its newest item
  #onTurn;
  #onFloor;
  #speechStartMs = null;
  #open = null; // the user's turn that has not ended
  floor = null;

  constructor(onTurn, onFloor) {
    this.#onTurn = onTurn;
    this.#onFloor = onFloor;
  }

  /** Whether the model is being heard: then whoever speaks interrupts it. */
  get modelSpeaks() {
    return this.floor === "model";
  }

  /** One event of the server, parsed. */
  take(event) {
    this.#handlers[event.type]?.(event);
  }

  /** The user takes or gives back the floor by hand (push to talk). */
  held(holding) {
    this.#setFloor(holding ? "you" : "thinking");
  }

  /** The call is over, and with it what was being said. */
  end() {
    if (this.#open !== null) this.#change(this.#open, "you", { note: "call ended" });
    this.#open = null;
  }

  #handlers = {
    "session.created": () => this.#setFloor("listening"),
    "input_audio_buffer.speech_started": ({ item_id, audio_start_ms }) => {
      this.#speechStartMs = audio_start_ms ?? null;
      this.#open = item_id;
      this.#change(item_id, "you", { note: "speaking" });
      this.#setFloor("you");
    },
    "input_audio_buffer.speech_stopped": ({ item_id, audio_end_ms }) => {
      const lasted = this.#speechStartMs === null || audio_end_ms === undefined ? null : audio_end_ms - this.#speechStartMs;
      this.#open = null;
      this.#change(item_id, "you", { note: lasted === null ? "" : `${seconds(lasted)}` });
      this.#setFloor("thinking");
    },
    "input_audio_buffer.committed": ({ item_id }) => {
      if (!this.#turns.has(item_id)) this.#change(item_id, "you", {});
    },
    "conversation.item.input_audio_transcription.delta": ({ item_id, delta }) => this.#append(item_id, "you", delta),
    "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) => this.#change(item_id, "you", { text: transcript }),
    "response.output_item.added": ({ response_id, item }) => this.#items.set(response_id, item?.id),
    "response.output_audio_transcript.delta": ({ item_id, delta }) => this.#append(item_id, "model", delta),
    "response.output_audio_transcript.done": ({ item_id, transcript }) => this.#change(item_id, "model", { text: transcript }),
    "response.output_text.delta": ({ item_id, delta }) => this.#append(item_id, "model", delta),
    "response.output_text.done": ({ item_id, text }) => this.#change(item_id, "model", { text }),
    "output_audio_buffer.started": () => this.#setFloor("model"),
    "output_audio_buffer.stopped": () => this.#setFloor("listening"),
    "output_audio_buffer.cleared": ({ response_id }) => {
      const item = this.#items.get(response_id);
      if (item) this.#change(item, "model", { cut: true, note: "interrupted" });
      if (this.floor === "model") this.#setFloor("listening");
    },
    "conversation.item.truncated": ({ item_id, audio_end_ms }) => {
      if (this.#turns.has(item_id)) this.#change(item_id, "model", { cut: true, note: `interrupted after ${seconds(audio_end_ms)}` });
    },
    "response.done": ({ response }) => {
      if (response?.status === "failed") this.#say(response.id, response.status_details?.error?.message ?? "The answer failed.");
      const heard = this.floor === "model" || this.floor === "you";
      if (!heard) this.#setFloor("listening");
    },
    error: ({ event_id, error }) => this.#say(event_id, error?.message ?? "The server reports an error."),
    "session.expiring": ({ event_id, expires_in_ms }) => this.#say(event_id, `The call ends in ${seconds(expires_in_ms)}.`),
  };

  #say(id, text) {
    this.#change(`server:${id}`, "server", { text });
  }

  #append(id, who, delta) {
    this.#change(id, who, { text: (this.#turns.get(id)?.text ?? "") + (delta ?? "") });
  }

  #change(id, who, changes) {
    const turn = { id, who, text: "", note: "", cut: false, ...this.#turns.get(id), ...changes };
    this.#turns.set(id, turn);
    this.#onTurn(turn);
  }

  #setFloor(floor) {
    if (this.floor === floor) return;
    this.floor = floor;
    this.#onFloor(floor);
  }
}
