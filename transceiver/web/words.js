/**
 * Figures and addresses as the page writes them.
 *
 * 1. What is not known is an en dash.
 */

const UNKNOWN = "–";

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  return ms < 10 && ms > 0 ? ms.toFixed(1) : String(Math.round(ms));
}

export function percent(fraction) {
  if (fraction === null || fraction === undefined) return UNKNOWN;
  const value = fraction * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function rounded(value, unit = "") {
  return value === null || value === undefined ? UNKNOWN : `${Math.round(value)}${unit && ` ${unit}`}`;
}

/** "1.6 s". */
export function seconds(ms) {
  return ms === null || ms === undefined ? UNKNOWN : `${(ms / 1000).toFixed(1)} s`;
}

export function duration(ms) {
  const seconds = Math.floor(ms / 1000);
  const rest = String(seconds % 60).padStart(2, "0");
  return seconds < 3600
    ? `${Math.floor(seconds / 60)}:${rest}`
    : `${Math.floor(seconds / 3600)}:${String(Math.floor(seconds / 60) % 60).padStart(2, "0")}:${rest}`;
}

/** "203.0.113.9:3478", "[2001:db8::9]:3478"; the port may be missing. */
export function endpoint(address, port) {
  if (!address) return UNKNOWN;
  const host = address.includes(":") && !address.startsWith("[") ? `[${address}]` : address;
  return port ? `${host}:${port}` : host;
}
