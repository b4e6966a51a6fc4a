"""The side that takes sealed requests (boxes.py), from other hosts (peers.py) and other clusters (clusters.py).

1. A box that does not open, is old, was taken before or is for somebody else gets 403.
2. All else is answered under seal, errors too; what it asks for is done by this pool's internal side.
"""

from __future__ import annotations

import json
import time

from aiohttp import web

from .boxes import PeerSeal, Taken
from .errors import RequestError
from .siblings import Reply, Siblings


class SealedSide:
    """See the module. One event loop, one thread."""

    def __init__(self, seal: PeerSeal, target: int, process: int, siblings: Siblings) -> None:
        """Takes what is for `target`, and has `process` answer it."""
        self._seal = seal
        self._target = target
        self._process = process
        self._siblings = siblings
        self._taken = Taken()

    async def answer(self, box: bytes) -> web.Response:
        """The response with the sealed answer. Raises HTTPForbidden (rule 1)."""
        opened = self._seal.open_ask(box, time.time())
        if opened is None:
            raise web.HTTPForbidden
        ask, asked = opened
        if ask.target != self._target or not self._taken.take(asked):
            raise web.HTTPForbidden
        try:
            reply = await self._siblings.send(
                self._process, ask.method, ask.path, ask.headers, ask.body
            )
        except RequestError as error:
            body = json.dumps(error.body()).encode()
            reply = Reply(error.status, {"Content-Type": "application/json"}, body)
        return web.Response(body=self._seal.seal_answer(reply, asked))
