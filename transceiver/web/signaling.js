/**
 * The page's HTTP side: configuration, the offer/answer exchange, hang-up and the server's view of a call.
 *
 * 1. Every failure leaves as a SignalingError with a sentence for the user; nothing else escapes.
 * 2. Errors of the server carry its own words: JSON `error.message`, else the status line.
 */

const CONFIG_URL = "/demo/config.json";
const ANSWER_TIMEOUT_MS = 10_000;
const END_TIMEOUT_MS = 1000;

/** A failed request; `status` is 0 when no response came, `retryAfterS` is null unless the server said when to come back. */
export class SignalingError extends Error {
  constructor(message, { status = 0, retryAfterS = null, code = "" } = {}) {
    super(message);
    this.name = "SignalingError";
    this.status = status;
    this.retryAfterS = retryAfterS;
    this.code = code;
  }
}

/** Returns {calls_url, backends, cluster, ingresses, needs_key, version} of the server that served the page. */
export async function loadConfig() {
  const response = await request(CONFIG_URL, { cache: "no-store" });
  return response.json();
}

/**
 * Posts the offer and returns {answer, url, id, serverMs}; `backend` and `ingress` are names of the configuration, or null;
 * so is `key` on a server that asks for none.
 *
 * `url` is the call's own address for hang-up and statistics (null when the server named none), `serverMs` what the
 * server says it spent (Server-Timing), else null.
 */
export async function placeCall(callsUrl, offer, { backend = null, ingress = null, key = null } = {}) {
  const url = new URL(callsUrl, location.href);
  if (backend) url.searchParams.set("backend", backend);
  if (ingress) url.searchParams.set("ingress", ingress);
  const response = await request(url, {
    method: "POST",
    headers: { "Content-Type": "application/sdp", Accept: "application/sdp", ...bearer(key) },
    body: offer,
    signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
  });
  const place = response.headers.get("Location");
  const callUrl = place ? new URL(place, response.url).href : null;
  return {
    answer: await response.text(),
    url: callUrl,
    id: callUrl ? callUrl.split("/").pop() : null,
    serverMs: serverTiming(response.headers.get("Server-Timing")),
  };
}

/**
 * Ends a call at the server; works while the page is being closed.
 *
 * Resolves when the server knows, or soon when it does not answer: a failure is of no interest to anybody by then.
 */
export async function endCall(callUrl, key) {
  if (!callUrl) return;
  const signal = AbortSignal.timeout(END_TIMEOUT_MS);
  await fetch(callUrl, { method: "DELETE", headers: bearer(key), keepalive: true, signal }).catch(() => {});
}

/** Returns the server's JSON about a call; it answers for a minute after the end, so the reason can still be asked. */
export async function callStats(callUrl, key) {
  const signal = AbortSignal.timeout(4000);
  const response = await request(`${callUrl}/stats`, { headers: bearer(key), cache: "no-store", signal });
  return response.json();
}

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    // Asked of the signal: Chromium before 124 names the error AbortError.
    if (options.signal?.aborted) throw new SignalingError("The server took too long to answer.");
    throw new SignalingError("The server could not be reached.");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    error = { message: text.length < 300 && !text.trimStart().startsWith("<") ? text.trim() : "" };
  }
  const retryAfterS = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new SignalingError(error.message || `${response.status} ${response.statusText}`.trim(), {
    status: response.status,
    retryAfterS: Number.isNaN(retryAfterS) ? null : retryAfterS,
    code: error.code ?? "",
  });
}

function bearer(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function serverTiming(header) {
  const match = /dur=([\d.]+)/.exec(header ?? "");
  return match ? Number(match[1]) : null;
}
