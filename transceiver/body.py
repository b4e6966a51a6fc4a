"""Reads the body of a request that carries an offer, within bounds.

1. Nothing is read of a body that says it is too large, or that is compressed.
2. An offer comes as application/sdp, as a multipart form (`sdp`, `session`) or as JSON with the
   same two fields.
"""

from __future__ import annotations

import asyncio
import re
from email.message import Message

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from .backends.base import Event
from .errors import OfferError, RequestError
from .nesting import read_json
from .offer import MAX_OFFER_BYTES

MAX_SESSION_BYTES = 262_144
MAX_BODY_BYTES = MAX_OFFER_BYTES + MAX_SESSION_BYTES
MAX_PARTS = 4
MAX_PARAMETERS_BYTES = 2_048
"""Of a header; the standard library takes the square of their number and length."""
BODY_TIMEOUT_S = 5.0

_DISPOSITION = re.compile(rb"(?i)\r\ncontent-disposition:([^\r\n]*)")
_PART_ENCODING = re.compile(
    rb"(?i)\r\ncontent-(?:transfer-)?encoding:(?! *(?:identity|binary|8bit|7bit))"
)


async def read_offer_body(request: web.Request) -> tuple[str, Event]:
    """The SDP text and the session the client asked for. Raises RequestError."""
    kind = media_type_of(request)
    if kind == "application/sdp":
        raw = await read_bounded(request, MAX_OFFER_BYTES)
        return _decode(raw), {}
    if kind == "application/json":
        fields = _json(await read_bounded(request, MAX_BODY_BYTES), "The body")
        sdp, session = fields.get("sdp"), fields.get("session")
        if fields.get("type", "offer") != "offer":
            raise OfferError(400, "invalid_offer", "The body holds an SDP that is no offer.")
        if not isinstance(sdp, str):
            raise RequestError(400, "invalid_request", "`sdp` must be text.", param="sdp")
        if not isinstance(session, dict | None):
            raise RequestError(
                400, "invalid_request", "`session` must be an object.", param="session"
            )
        return sdp.removeprefix("\ufeff"), session or {}
    if kind == "multipart/form-data":
        return await _read_form(request)
    raise RequestError(
        415,
        "unsupported_media_type",
        "The offer must come as application/sdp, multipart/form-data or application/json.",
    )


def media_type_of(request: web.Request) -> str:
    """The type of the body in lower case, empty without one; its parameters cost nothing."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def read_bounded(request: web.Request, limit_bytes: int) -> bytes:
    """The body as it came, at most `limit_bytes`; RequestError 400, 408, 413 or 415 otherwise."""
    encoding = ",".join(request.headers.getall("Content-Encoding", ()))
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(415, "unsupported_media_type", "The body must not be compressed.")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise too_large(limit_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > limit_bytes:
                    raise too_large(limit_bytes)
    except TimeoutError:
        raise RequestError(408, "request_timeout", "The body did not arrive in time.") from None
    except (ConnectionError, web.RequestPayloadError, HttpProcessingError):
        raise RequestError(400, "invalid_request", "The body ended too early.") from None
    return bytes(body)


async def read_json_body(request: web.Request, limit_bytes: int) -> Event:
    """A JSON object, or an empty one for an empty body. Raises RequestError."""
    body = await read_bounded(request, limit_bytes)
    return _json(body, "The body") if body else {}


def too_large(limit_bytes: int) -> RequestError:
    """413."""
    return RequestError(413, "offer_too_large", f"The body is over {limit_bytes} bytes.")


async def _read_form(request: web.Request) -> tuple[str, Event]:
    """OpenAI's unified interface: part `sdp`, part `session` with JSON."""
    parts = _split_form(
        request.headers["Content-Type"], await read_bounded(request, MAX_BODY_BYTES)
    )
    if "sdp" not in parts:
        raise RequestError(400, "invalid_form", "The form has no part `sdp`.", param="sdp")
    session = {}
    if "session" in parts:
        session = _json(parts["session"], "Part `session`", param="session")
    return _decode(parts["sdp"]), session


def _split_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of a multipart form by name (RFC 7578), in one pass over the body."""
    if len(content_type) > MAX_PARAMETERS_BYTES:
        raise _invalid_form("has too long a Content-Type")
    header = Message()
    header["Content-Type"] = content_type
    try:
        boundary = header.get_boundary()
    except (LookupError, ValueError):  # an RFC 2231 charset or encoding that is none
        boundary = None
    if not boundary:
        raise _invalid_form("has no boundary")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    _, *pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _invalid_form(f"is malformed, or has over {MAX_PARTS} parts")
    parts: dict[str, bytes] = {}
    for piece in pieces[:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        if len(head) > MAX_PARAMETERS_BYTES:
            raise _invalid_form("has a part without a name, or with too long a head")
        name = _part_name(head)
        if not blank or name is None:
            raise _invalid_form("has a part without a name")
        if _PART_ENCODING.search(head):
            raise _invalid_form("has an encoded part")
        parts[name] = content
    return parts


def _part_name(head: bytes) -> str | None:
    """The `name` of a part, and nothing that only looks like one inside another parameter."""
    line = _DISPOSITION.search(head)
    header = Message()
    header["Content-Disposition"] = line[1].decode("latin-1").strip() if line is not None else ""
    try:
        name = header.get_param("name", header="Content-Disposition")
    except (LookupError, ValueError):  # an RFC 2231 charset or encoding that is none
        return None
    return name if isinstance(name, str) and name else None


def _invalid_form(what: str) -> RequestError:
    return RequestError(400, "invalid_form", f"The multipart form {what}.")


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OfferError(400, "invalid_offer", "The offer is not UTF-8 text.") from None


def _json(raw: bytes, what: str, param: str | None = None) -> Event:
    try:
        value = read_json(raw)
    except ValueError:
        raise RequestError(400, "invalid_json", f"{what} is not JSON.", param=param) from None
    if not isinstance(value, dict):
        raise RequestError(400, "invalid_json", f"{what} is not a JSON object.", param=param)
    return value
