"""The baseline: a stock aiortc server that decodes each client's sound and encodes it again.

As its own examples do it: the incoming track is added as the outgoing one. Prints its port.
"""

from __future__ import annotations

import asyncio
import sys

import aioice.ice
from aiohttp import web
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription

# It never gathers a loopback address; everything else is as it comes.
aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]

connections: set[RTCPeerConnection] = set()


async def answer(request: web.Request) -> web.Response:
    """An SDP offer in, an answer out."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    connections.add(connection)

    @connection.on("track")
    def on_track(track: MediaStreamTrack) -> None:
        connection.addTrack(track)

    await connection.setRemoteDescription(RTCSessionDescription(await request.text(), "offer"))
    await connection.setLocalDescription(await connection.createAnswer())
    return web.Response(
        status=201, text=connection.localDescription.sdp, content_type="application/sdp"
    )


async def main() -> None:
    """Serves until its input ends."""
    app = web.Application()
    app.router.add_post("/v1/realtime/calls", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
