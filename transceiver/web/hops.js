/**
 * "Who serves you": browser, relay, transceiver, backend, each with the address that proves it.
 *
 * 1. The relay shown is the selected remote candidate of getStats, not what the answer promised.
 * 2. The browser's address is the one the relay saw (the server's `flow.client`), else its own local candidate.
 */

import { endpoint } from "./words.js";

export class Hops {
  #hops;
  #texts = {};

  constructor(list) {
    this.#hops = Object.fromEntries(
      [...list.children].map((item) => [
        item.id.replace("hop-", ""),
        { item, name: item.querySelector(".hop-name"), detail: item.querySelector(".hop-detail") },
      ]),
    );
    for (const [key, { detail }] of Object.entries(this.#hops)) this.#texts[key] = detail.textContent;
  }

  clear() {
    for (const key of ["browser", "relay", "transceiver"]) this.#set(key, null, this.#texts[key]);
  }

  backend(name) {
    this.#set("backend", name, this.#texts.backend);
  }

  /** `sample`: of sampler.js; `server`: the call's statistics or null. */
  show(sample, server) {
    const { local, remote } = sample;
    if (remote) this.#set("relay", endpoint(remote.address, remote.port), relayDetail(remote, server));
    const client = server?.flow?.client;
    if (client) this.#set("browser", flowText(client), this.#texts.browser);
    else if (local?.address) this.#set("browser", endpoint(local.address, local.port), "local candidate");
  }

  server(server) {
    const { transceiver } = server;
    if (!transceiver) return;
    const place = transceiver.media ? flowText(transceiver.media) : transceiver.host;
    const cluster = server.cluster === undefined ? null : `cluster\u00a0${server.cluster}`;
    const detail = [cluster, place, `pid\u00a0${transceiver.pid}`].filter(Boolean).join("\u00a0· ");
    this.#set("transceiver", `process ${transceiver.process}`, detail);
  }

  #set(key, name, detail) {
    const hop = this.#hops[key];
    hop.name.replaceChildren(...breakable(name ?? "–"));
    hop.detail.replaceChildren(...breakable(detail));
    hop.item.classList.toggle("known", Boolean(name));
  }
}

/** An address may be broken before its port, and nowhere else if there is room for the rest. */
function breakable(text) {
  return text.split(/(?=:\d{2,5}\b)/).flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));
}

function relayDetail(remote, server) {
  const ingress = server?.ingress?.name;
  return [remote.protocol, ingress && `ingress\u00a0${ingress}`].filter(Boolean).join("\u00a0· ");
}

/** The server writes an endpoint as "host:port", [host, port] or {address, port}. */
function flowText(value) {
  if (typeof value === "string") return value;
  return Array.isArray(value) ? endpoint(value[0], value[1]) : endpoint(value.address ?? value.host, value.port);
}
