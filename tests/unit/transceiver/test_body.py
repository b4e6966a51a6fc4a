"""Bodies with offers as clients write them, and as nobody should."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from tests.support.offers import CHROMIUM
from transceiver.body import _json, _split_form, read_offer_body
from transceiver.errors import RequestError

KIND = "multipart/form-data; boundary=b"


def form(encoding: str) -> bytes:
    head = f'Content-Disposition: form-data; name="sdp"\r\n{encoding}\r\nv=0'
    return f"--b\r\n{head}\r\n--b--\r\n".encode()


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ('name="sdp"', "sdp"),
        ("name=sdp", "sdp"),
        ('Name="sdp"; filename="o.sdp"', "sdp"),
        ('filename="; name=session"; name="sdp"', "sdp"),
        ('filename="a; name=\\"session\\""; name="sdp"', "sdp"),
        ("name*=utf-8''sdp", None),
        ('filename="; name=sdp"', None),
        ("", None),
    ],
)
def test_a_parts_name_is_its_own_parameter(parameters: str, name: str | None) -> None:
    body = f"--b\r\nContent-Disposition: form-data; {parameters}\r\n\r\nv=0\r\n--b--\r\n".encode()
    if name is not None:
        assert _split_form(KIND, body) == {name: b"v=0"}
    else:
        with pytest.raises(RequestError):
            _split_form(KIND, body)


@pytest.mark.parametrize("value", ["binary", "8bit", "7bit", "identity", "Binary"])
@pytest.mark.parametrize("space", ["", " ", "  "])
def test_encodings_that_change_nothing_are_taken(value: str, space: str) -> None:
    body = form(f"Content-Transfer-Encoding:{space}{value}\r\n")
    assert _split_form(KIND, body) == {"sdp": b"v=0"}


@pytest.mark.parametrize("header", ["Content-Transfer-Encoding: base64", "Content-Encoding: gzip"])
def test_encoded_parts_are_refused(header: str) -> None:
    with pytest.raises(RequestError) as caught:
        _split_form(KIND, form(header + "\r\n"))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "boundary", ["", "; boundary=", "; boundary*=idna''%ff..", "; boundary*=x''a"]
)
def test_a_boundary_that_is_none_is_a_bad_request(boundary: str) -> None:
    with pytest.raises(RequestError) as caught:
        _split_form("multipart/form-data" + boundary, form(""))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "parameters",
    ['name="sdp"; filename="' + ";" * 320_000, "a" + ";a" * 160_000, 'name="' + '\\"' * 160_000],
    ids=range(3),
)
def test_a_head_of_any_length_is_refused_at_once(parameters: str) -> None:
    body = f"--b\r\nContent-Disposition: form-data; {parameters}\r\n\r\nv=0\r\n--b--\r\n".encode()
    started_s = time.thread_time()
    with pytest.raises(RequestError) as caught:
        _split_form(KIND, body)
    assert caught.value.status == 400
    assert time.thread_time() - started_s < 0.5


@pytest.mark.parametrize(
    "kind", ["multipart/form-data" + ";a" * 4_000, 'multipart/form-data; a="' + ";" * 8_000]
)
async def test_a_type_of_any_length_is_refused_at_once(kind: str) -> None:
    request = with_body(form(""), kind)
    started_s = time.thread_time()
    with pytest.raises(RequestError) as caught:
        await read_offer_body(request)
    assert caught.value.status == 400
    assert time.thread_time() - started_s < 0.1


@pytest.mark.parametrize("depth", [200, 959, 961, 1_000, 50_000])
def test_deep_json_is_a_bad_request(depth: int) -> None:
    with pytest.raises(RequestError) as caught:
        _json(b'{"a":' * depth + b"1" + b"}" * depth, "The body")
    assert caught.value.status == 400


def with_body(body: bytes, kind: str, **headers: str) -> web.Request:
    loop = asyncio.get_running_loop()
    reader = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    reader.feed_data(body)
    reader.feed_eof()
    return make_mocked_request("POST", "/", {"Content-Type": kind, **headers}, payload=reader)


SDP = CHROMIUM.encode()
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/sdp", BOM + SDP),
        ("application/sdp; charset=utf-8", SDP),
        ("Application/SDP", SDP),
        (KIND, form("").replace(b"v=0", BOM + SDP)),
        ("application/json", BOM + json.dumps({"sdp": "\ufeff" + CHROMIUM}).encode()),
        ("application/json", json.dumps({"sdp": CHROMIUM, "session": None}).encode()),
    ],
)
async def test_offers_however_they_are_wrapped(kind: str, body: bytes) -> None:
    assert await read_offer_body(with_body(body, kind)) == (CHROMIUM, {})


@pytest.mark.parametrize("encoding", ["identity", "Identity", " ", ""])
async def test_a_body_that_is_not_compressed_may_say_so(encoding: str) -> None:
    headers = {"Content-Encoding": encoding}
    assert await read_offer_body(with_body(SDP, "application/sdp", **headers)) == (CHROMIUM, {})


@pytest.mark.parametrize("session", [b"[]", b"0", b'"x"', b"false", b""])
async def test_a_session_that_is_no_object_is_named(session: bytes) -> None:
    part = b'Content-Disposition: form-data; name="session"\r\n\r\n' + session
    bodies = [(KIND, b"--b\r\n" + part + b"\r\n" + form(""))]
    if session:
        bodies.append(("application/json", b'{"sdp": "v=0", "session": ' + session + b"}"))
    for kind, body in bodies:
        with pytest.raises(RequestError) as caught:
            await read_offer_body(with_body(body, kind))
        assert (caught.value.status, caught.value.param) == (400, "session")
