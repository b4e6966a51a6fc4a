"""What a call placed by the demo page must have shown, whichever browser placed it.

1. The page is asked through expressions that give JSON; the checks know no browser.
2. Energy and packets are compared between readings of getStats, seconds apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.interop.demo import Demo

MOMENTS = ("offer", "answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out")

CONNECTED = "document.body.dataset.state === 'connected'"
HEARD = "'first_audio_out' in voiceRelay.call.marks && 'first_audio_in' in voiceRelay.call.marks"
SERVER_COMPLETE = (
    "Object.values(voiceRelay.call.server?.timeline_ms ?? {x: null}).every((ms) => ms !== null)"
)


def reading_of(connection: str) -> str:
    """An expression: the counters of the audio of this RTCPeerConnection.

    A report may be missing at first: none stands for what has not come yet, and browsers hand out statistics that
    are up to 50 ms old.
    """
    return _READING.replace("CONNECTION", connection)


_READING = """(async () => {
  for (;;) {
    const reports = [...(await CONNECTION.getStats()).values()];
    const inbound = reports.find((report) => report.type === "inbound-rtp");
    const outbound = reports.find((report) => report.type === "outbound-rtp");
    if (inbound && outbound) {
      return {
        at_ms: inbound.timestamp,
        received: inbound.packetsReceived,
        sent: outbound.packetsSent,
        lost: inbound.packetsLost,
        energy: inbound.totalAudioEnergy,
      };
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
})()"""

READING = reading_of("voiceRelay.call.connection")

# The meter moves first: libwebrtc adds up energy from a level that it takes every 100 ms.
ENERGY = f"({READING}).then((reading) => reading.energy > 0)"

# A call of its own, with an audio section for each way; the mid of the section that is heard.
APART = """async (ways) => {
  const pc = new RTCPeerConnection();
  const [track] = (await navigator.mediaDevices.getUserMedia({audio: true})).getTracks();
  for (const direction of ways) {
    pc.addTransceiver(direction === 'sendonly' ? track : 'audio', {direction});
  }
  pc.createDataChannel('oai-events');
  await pc.setLocalDescription();
  const response = await fetch('/v1/realtime/calls', {
    method: 'POST', body: pc.localDescription.sdp, headers: {'Content-Type': 'application/sdp'},
  });
  await pc.setRemoteDescription({type: 'answer', sdp: await response.text()});
  for (;;) {
    const reports = [...(await pc.getStats()).values()];
    const heard = reports.find((report) => report.type === 'inbound-rtp');
    if (heard && heard.packetsReceived > 10) {
      pc.close();
      return heard.mid;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}"""

# Each a second's sample; Firefox before 142 learns the round trip from RTCP alone, whose first reports take seconds.
FIGURES_SHOWN = "voiceRelay.sample?.rttMs != null && voiceRelay.sample.lossDown !== null"

SHOWN = """({
  state: document.body.dataset.state,
  marks: voiceRelay.call.marks,
  id: voiceRelay.call.id,
  sample: voiceRelay.sample,
  levels: voiceRelay.levels,
  server: voiceRelay.call.server,
  moments: Object.fromEntries([...document.querySelectorAll("#moments tr")].map((row) => [
    row.dataset.moment,
    [row.querySelector(".browser").textContent, row.querySelector(".server").textContent],
  ])),
  hops: Object.fromEntries([...document.querySelectorAll(".hop")].map((hop) => [
    hop.id.replace("hop-", ""), hop.querySelector(".hop-name").textContent,
  ])),
  events: [...document.querySelectorAll("#log .entry")].map((entry) => entry.dataset.type),
  rtt: document.querySelector("#plot-rtt .plot-value").textContent,
  loss: document.querySelector("#plot-loss .plot-value").textContent,
  notice: document.getElementById("notice").hidden ? null : document.getElementById("notice").innerText,
})"""


@dataclass(frozen=True)
class Reading:
    """Counters of the call's audio at one moment."""

    at_ms: float
    received: int
    sent: int
    lost: int
    energy: float


class SoundCheck:
    """Readings a few seconds apart, until one span between two shows a full stream that is heard.

    A busy machine makes a browser send late, and lets what it sent wait at the moment of a reading; it must come back
    all the same.
    """

    SPAN_S = 2.0
    MOST_SPANS = 8

    def __init__(self, first: Mapping[str, Any]) -> None:
        self._readings = [Reading(**first)]
        self.full = False

    def add(self, values: Mapping[str, Any]) -> None:
        """One more reading; `full` says whether it was the last one needed."""
        before, now = self._readings[-1], Reading(**values)
        self._readings.append(now)
        rate = (now.received - before.received) * 1000 / (now.at_ms - before.at_ms)
        heard = now.energy > before.energy
        self.full = heard and rate >= 45 and now.received >= 0.9 * now.sent

    @property
    def over(self) -> bool:
        """No more readings are needed, or none would help."""
        return self.full or len(self._readings) > self.MOST_SPANS

    def check(self) -> None:
        """Audio came back all the time, all of it, and it was not silence."""
        assert self.full, self._readings
        assert self._readings[-1].lost == 0, self._readings


def check_marks(marks: Mapping[str, float]) -> None:
    """All moments are there, none before what it takes."""
    assert sorted(marks, key=MOMENTS.index) == list(MOMENTS)
    assert (
        0 == marks["offer"] < marks["answer"] <= marks["ice"] <= marks["dtls"] <= marks["channel"]
    ), marks
    assert marks["dtls"] <= marks["first_audio_in"]
    assert marks["dtls"] <= marks["first_audio_out"]


def check_shown(shown: Mapping[str, Any], demo: Demo) -> None:
    """The page shows the whole call: times, path, events, figures, and no complaint."""
    assert shown["state"] == "connected"
    assert shown["notice"] is None
    assert shown["id"].startswith("rtc_")

    check_marks(shown["marks"])
    for moment, (browser, server) in shown["moments"].items():
        assert browser[0].isdigit(), moment
        assert moment == "offer" or server[0].isdigit(), moment

    remote = shown["sample"]["remote"]
    assert f"{remote['address']}:{remote['port']}" == demo.relay
    assert shown["hops"]["relay"] == demo.relay
    assert shown["hops"]["transceiver"].startswith("process ")
    assert shown["hops"]["browser"][0].isdigit()
    assert shown["hops"]["backend"] == "loopback"

    assert "session.created" in shown["events"]
    assert shown["rtt"].endswith(" ms")
    assert shown["loss"].endswith(" %")


def check_relay(before: Mapping[str, float], during: Mapping[str, float]) -> None:
    """The call went through the relay, both ways."""
    assert during['relay_flows{state="established"}'] >= 1
    for side in ("public", "internal"):
        for counter in ("relay_rx_packets_total", "relay_tx_packets_total"):
            name = f'{counter}{{side="{side}"}}'
            assert during[name] - before.get(name, 0) >= 45, name
