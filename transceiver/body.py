"""Reads the body of a request that carries an offer, within bounds.

1. Nothing is read of a body that says it is too large, or that is compressed.
2. An offer comes as application/sdp, as a multipart form (`sdp`, `session`) or as JSON with the
   same two fields.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import BodyPartReader, web

from .backends.base import Event
from .errors import OfferError, RequestError
from .offer import MAX_OFFER_BYTES

MAX_SESSION_BYTES = 262_144
MAX_BODY_BYTES = MAX_OFFER_BYTES + MAX_SESSION_BYTES
MAX_PARTS = 4
BODY_TIMEOUT_S = 5.0


async def read_offer_body(request: web.Request) -> tuple[str, Event]:
    """The SDP text and the session the client asked for. Raises RequestError."""
    kind = request.content_type
    if kind == "application/sdp":
        raw = await read_bounded(request, MAX_OFFER_BYTES)
        return _decode(raw), {}
    if kind == "application/json":
        fields = _json(await read_bounded(request, MAX_BODY_BYTES), "The body")
        sdp, session = fields.get("sdp"), fields.get("session") or {}
        if fields.get("type", "offer") != "offer":
            raise OfferError(400, "invalid_offer", "The body holds an SDP that is no offer.")
        if not isinstance(sdp, str) or not isinstance(session, dict):
            raise RequestError(
                400, "invalid_request", "`sdp` must be text and `session` an object.", param="sdp"
            )
        return sdp, session
    if kind == "multipart/form-data":
        return await _read_form(request)
    raise RequestError(
        415,
        "unsupported_media_type",
        "The offer must come as application/sdp, multipart/form-data or application/json.",
    )


async def read_bounded(request: web.Request, limit_bytes: int) -> bytes:
    """The body as it came, at most `limit_bytes`; 413, 415 or 408 otherwise."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError(415, "unsupported_media_type", "The body must not be compressed.")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise too_large(limit_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while chunk := await request.content.readany():
                size_bytes += len(chunk)
                if size_bytes > limit_bytes:
                    raise too_large(limit_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(408, "request_timeout", "The body did not arrive in time.") from None
    return b"".join(chunks)


def too_large(limit_bytes: int) -> RequestError:
    """413."""
    return RequestError(413, "offer_too_large", f"The body is over {limit_bytes} bytes.")


async def _read_form(request: web.Request) -> tuple[str, Event]:
    """OpenAI's unified interface: part `sdp`, part `session` with JSON."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError(415, "unsupported_media_type", "The body must not be compressed.")
    if request.content_length is not None and request.content_length > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    parts: dict[str, bytes] = {}
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            reader = await request.multipart()
            for _ in range(MAX_PARTS):
                part = await reader.next()
                if part is None:
                    break
                if not isinstance(part, BodyPartReader) or part.name not in ("sdp", "session"):
                    raise RequestError(400, "invalid_form", "The form has an unknown part.")
                parts[part.name] = await _read_part(part)
    except TimeoutError:
        raise RequestError(408, "request_timeout", "The body did not arrive in time.") from None
    except (ValueError, AssertionError, KeyError) as error:
        raise RequestError(400, "invalid_form", "The multipart form is malformed.") from error
    if "sdp" not in parts:
        raise RequestError(400, "invalid_form", "The form has no part `sdp`.", param="sdp")
    session = _json(parts["session"], "Part `session`") if "session" in parts else {}
    return _decode(parts["sdp"]), session


async def _read_part(part: BodyPartReader) -> bytes:
    limit_bytes = MAX_OFFER_BYTES if part.name == "sdp" else MAX_SESSION_BYTES
    content = bytearray()
    while chunk := await part.read_chunk():
        content += chunk
        if len(content) > limit_bytes:
            raise too_large(limit_bytes)
    return bytes(content)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise OfferError(400, "invalid_offer", "The offer is not UTF-8 text.") from None


def _json(raw: bytes, what: str) -> Event:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestError(400, "invalid_json", f"{what} is not JSON.") from None
    if not isinstance(value, dict):
        raise RequestError(400, "invalid_json", f"{what} is not a JSON object.")
    return value
