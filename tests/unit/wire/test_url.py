"""URLs of servers: what names one and what cannot."""

import pytest

from relay.wire.url import names_a_server


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a.example:443/x",
        "wss://[::1]:1",
        "ws://10.0.0.1",
        "https://b\u00fccher.example",
    ],
)
def test_named(url: str) -> None:
    assert names_a_server(url)


@pytest.mark.parametrize(
    "url",
    ["", "http://", "http://:80", "http://a:0", "http://a:65536", "http://a:x", "http://a..b", "http://[::1",
     f"http://{'a' * 64}.example"],
)  # fmt: skip
def test_not_named(url: str) -> None:
    assert not names_a_server(url)
