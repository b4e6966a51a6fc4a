"""Chromium was told two entries; the one that it talks through dies, and the call goes on through the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.addresses import format_endpoint
from tests.support.browser import wait_until
from tests.support.process import Processes
from tests.support.relayed import Relay

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]

SELECTED = """(async () => {
  const reports = [...(await voiceRelay.call.connection.getStats()).values()];
  const transport = reports.find((report) => report.type === "transport");
  const pair = reports.find((report) => report.id === transport?.selectedCandidatePairId);
  const remote = reports.find((report) => report.id === pair?.remoteCandidateId);
  return remote ? `${remote.address}:${remote.port}` : null;
})()"""


def test_the_call_goes_on_through_the_second_entry(
    page: Page, processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Relay(processes, tmp_path / "first", workers=1)
    (tmp_path / "second" / "keyring").write_text((tmp_path / "first" / "keyring").read_text())
    second = Relay(processes, tmp_path / "second", workers=1)
    near, far = (format_endpoint(*relay.public[0]) for relay in (first, second))
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        f"--keyring={tmp_path / 'first' / 'keyring'}", "--cluster=7", "--demo-page", "--place=50,8",
        f"--ingress=near={near}@50,8", f"--ingress=far={far}@38,-77", "--second-ingress",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    page.goto(f"http://{server.listening('http')[0]}")
    page.click("#tone")
    wait_until(page, "document.body.dataset.state === 'connected'")
    wait_until(page, SELECTED)
    heard = "voiceRelay.sample?.packetsIn > 40"
    wait_until(page, heard)
    used = page.evaluate(SELECTED)
    (first if used == near else second).process.kill()
    died_s = time.monotonic()
    wait_until(page, f"{SELECTED}.then((at) => at && at !== '{used}')", timeout_ms=60_000)
    moved_s = time.monotonic() - died_s
    wait_until(page, heard)
    print(f"selected after {moved_s:.1f} s, heard after {time.monotonic() - died_s:.1f} s")
    page.click("#talk")
    wait_until(page, "document.body.dataset.state === 'ended'")
