/**
 * What the page says when something is not as hoped: a title, what happened, what to do.
 *
 * 1. A notice is {kind, title, text}; kind is "error", "warning" or "info"; `status` is the HTTP status, if any.
 * 2. Words of the server are passed on as they are.
 */

import { endpoint } from "./words.js";

/** What stands under the buttons while nothing is wrong. */
export const HINTS = {
  microphone: "Headphones are best: through loudspeakers, your browser takes the echo out again.",
  tone: "A melody goes into the call. What you hear is what came back.",
};
/** The page's title and its empty conversation (null: there will be none), by backend. */
export function backendWords(name) {
  if (name === "loopback") {
    return { title: "Say something. Hear it come back.", empty: null };
  }
  if (name === "echo") {
    return { title: "Say something. Hear it come back.", empty: "Speak, then pause: what you said comes back. Speak over it to interrupt." };
  }
  return { title: "Say something. Hear an answer.", empty: "What you and the model say appears here. Speak over it to interrupt." };
}
export const NO_METERS = "The meters stay still: the browser's sound output does not start. The call itself needs none.";

const SOURCES = {
  insecure: {
    kind: "warning",
    title: "No microphone on this address",
    text: "Browsers give the microphone only to secure pages. Open this page over https:// or at http://localhost. The test tone works here as well.",
  },
  unsupported: {
    kind: "warning",
    title: "This browser offers no microphone",
    text: "It has no way for a page to ask for one. The test tone needs none.",
  },
  refused: {
    kind: "warning",
    title: "The microphone was refused",
    text: "Allow it in the site settings beside the address bar, then press Talk again. Or go on with a test tone.",
  },
  absent: {
    kind: "warning",
    title: "No microphone found",
    text: "Connect one and press Talk again, or go on with a test tone.",
  },
  busy: {
    kind: "warning",
    title: "The microphone does not answer",
    text: "Another program may be using it. Close that one and press Talk again, or go on with a test tone.",
  },
  silent: {
    kind: "warning",
    title: "The test tone does not start",
    text: "This browser makes no sound without an output device. Connect one, or use a microphone: Talk needs no output.",
  },
};

export function sourceNotice(error) {
  return SOURCES[error.code] ?? { kind: "warning", title: "The microphone failed", text: `${error.message}.` };
}

export function noWebRtcNotice() {
  return {
    kind: "error",
    title: "This browser has no WebRTC",
    text: "It may be switched off by a setting, a policy or an extension. Try another browser.",
  };
}

export function noConfigNotice(error) {
  return { kind: "warning", title: "The server did not tell its configuration", text: `${error.message} Talk may still work.` };
}

export function heldBackNotice() {
  return { kind: "info", title: "The browser holds the sound back", text: "Tap anywhere on the page to hear what comes back." };
}

export function refusalNotice(error) {
  if (error.name !== "SignalingError") {
    return { kind: "error", title: "The call could not be set up", text: `${error.message}` };
  }
  if (error.status === 0) return { kind: "error", title: "No answer", text: `${error.message} Is it running?` };
  if (error.status === 401) {
    const wanted = error.code === "missing_api_key" ? "This server wants an API key or a client secret." : error.message;
    return { kind: "error", title: "Not signed in", text: `${wanted} There is a field for it under Settings.`, status: 401 };
  }
  const retry = error.retryAfterS === null ? "" : ` Try again in ${error.retryAfterS} s.`;
  const title = { 403: "Not allowed", 429: "Too many calls", 503: "The server is full" }[error.status];
  return { kind: "error", title: title ?? "The server refused the call", text: `${error.message}${retry}`, status: error.status };
}

/** What ended the call: `cause` of call.js, the server's `close_reason` where it told one. */
export function endNotice(cause, closeReason, relay) {
  const at = relay ? ` at ${endpoint(relay.address, relay.port)}` : "";
  switch (cause) {
    case "hangup":
    case "cancelled":
    case "page":
      return null;
    case "timeout":
    case "unreachable":
      return {
        kind: "error",
        title: "No media path",
        text: `The server answered, but no packet came back from the relay${at}. A firewall or VPN may block UDP.`,
      };
    case "insecure":
      return { kind: "error", title: "No secure connection", text: `The DTLS handshake with the transceiver failed.` };
    case "lost":
      return { kind: "error", title: "Connection lost", text: `Nothing comes back from the relay${at} any more.` };
    default:
      return {
        kind: "info",
        title: "The server ended the call",
        text: closeReason ? `Its reason: ${closeReason.replaceAll("_", " ")}.` : "It gave no reason.",
      };
  }
}

/** Renders into `node`; null hides it. */
export function showNotice(node, notice) {
  node.hidden = notice === null;
  node.replaceChildren();
  if (notice === null) return;
  node.dataset.kind = notice.kind;
  const title = document.createElement("p");
  title.className = "notice-title";
  title.textContent = notice.title;
  const text = document.createElement("p");
  text.textContent = notice.text;
  node.append(title, text);
  if (notice.status) {
    const code = document.createElement("p");
    code.className = "notice-code";
    code.textContent = `HTTP ${notice.status}`;
    node.append(code);
  }
}
