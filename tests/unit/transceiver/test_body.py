"""Multipart forms as clients write them, and as nobody should."""

from __future__ import annotations

import pytest

from transceiver.body import _json, _split_form
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


@pytest.mark.parametrize("depth", [200, 959, 961, 1_000, 50_000])
def test_deep_json_is_a_bad_request(depth: int) -> None:
    with pytest.raises(RequestError) as caught:
        _json(b'{"a":' * depth + b"1" + b"}" * depth, "The body")
    assert caught.value.status == 400
