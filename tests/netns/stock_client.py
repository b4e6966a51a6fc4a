"""A stock aiortc client as a program of its own: `stock_client.py ORIGIN` prints a JSON line each 100 ms."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from tests.support.calls import stock_call

REPORT_S = 0.1


async def main(origin: str) -> None:
    """Talks until it is ended."""
    async with stock_call(origin) as call:
        await call.wait()
        while True:
            report = {
                "event": "report",
                "at_s": time.monotonic(),
                "loud_frames": call.loud_frames,
                "packets": call.packets_received(),
                "state": call.connection.connectionState,
                "location": call.location,
            }
            print(json.dumps(report), flush=True)
            await asyncio.sleep(REPORT_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
