"""API keys and client secrets: who passes, what a secret carries, and that nothing forged or expired opens."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest

from transceiver.auth import (
    CLIENT_SECRET_MAX_CHARS,
    OPEN,
    Authenticator,
    AuthError,
    AuthFileError,
    Principal,
    load_api_keys,
    load_auth_secret,
)

SEAL = b"0123456789abcdef"
KEY = "sk-test-0123456789"
NOW_S = 1_800_000_000.0


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# comment\nweb {KEY} calls=5 per_minute=60\n\ncron sk-other-0123456789 # x\n")
    return path


@pytest.fixture
def guarded(keys_file: Path) -> Authenticator:
    return Authenticator(SEAL, load_api_keys(keys_file))


def bearer(value: str) -> str:
    return f"Bearer {value}"


def secret_of(auth: Authenticator, **request: Any) -> str:
    made = auth.make_client_secret(Principal("web"), request, NOW_S)
    return str(made["value"])


def test_keys_and_their_limits_are_read(keys_file: Path) -> None:
    web, cron = load_api_keys(keys_file)
    assert (web.name, web.calls, web.calls_per_minute) == ("web", 5, 60)
    assert (cron.name, cron.calls, cron.calls_per_minute) == ("cron", None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "web",
        "web short",
        f"web {KEY} calls=x",
        f"web {KEY} calls",
        f"web {KEY} speed=3",
        f"web {KEY}\nweb sk-other-0123456789",
        f"web {KEY}\ncron {KEY}",
        f"open {KEY}",
        "web ek_0123456789012345",
    ],
)
def test_a_bad_key_file_is_one_line_without_the_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(AuthFileError) as caught:
        load_api_keys(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_missing_and_short_auth_secret(tmp_path: Path) -> None:
    with pytest.raises(AuthFileError):
        load_auth_secret(tmp_path / "none")
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(AuthFileError):
        load_auth_secret(tmp_path / "short")
    (tmp_path / "good").write_bytes(SEAL + b"\n")
    assert load_auth_secret(tmp_path / "good") == SEAL


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        bearer(KEY + "x"),
        bearer("ek_"),
        "Bearer ek_é",
    ],
)
def test_without_a_good_bearer_it_is_401(guarded: Authenticator, header: str | None) -> None:
    with pytest.raises(AuthError) as caught:
        guarded.authenticate(header, NOW_S)
    assert caught.value.status == 401
    assert KEY not in caught.value.message


def test_key_passes_and_scheme_is_case_insensitive(guarded: Authenticator) -> None:
    assert guarded.authenticate(bearer(KEY), NOW_S) == Principal("web")
    assert guarded.authenticate(f"bearer {KEY}", NOW_S) == Principal("web")


def test_open_server_takes_anything() -> None:
    auth = Authenticator(SEAL, is_open=True)
    for header in (None, "", "Bearer anything", "Bearer ek_forged"):
        assert auth.authenticate(header, NOW_S) == OPEN


def test_client_secret_carries_session_and_limits_until_it_expires(guarded: Authenticator) -> None:
    session = {"type": "realtime", "instructions": "be brief", "audio": {"output": {"voice": "x"}}}
    limits = {"max_call_seconds": 60, "updatable": ["audio.output.voice"]}
    request = {
        "expires_after": {"anchor": "created_at", "seconds": 30},
        "session": session,
        "limits": limits,
    }
    made = guarded.make_client_secret(Principal("web"), request, NOW_S)
    assert made["value"].startswith("ek_")
    assert made["expires_at"] == NOW_S + 30
    assert (made["session"]["object"], made["session"]["instructions"]) == (
        "realtime.session",
        "be brief",
    )
    for _ in range(2):
        caller = guarded.authenticate(bearer(made["value"]), NOW_S + 29)
        assert (caller.name, caller.session, caller.max_call_s) == ("web", session, 60.0)
        assert caller.updatable == ("audio.output.voice",)
    with pytest.raises(AuthError):
        guarded.authenticate(bearer(made["value"]), NOW_S + 30)
    assert guarded.authenticate(bearer(made["value"]), None) == caller  # a call outlives it


def test_client_secret_does_not_show_what_it_carries(guarded: Authenticator) -> None:
    value = secret_of(guarded, session={"instructions": "the dragon sleeps at noon"})
    raw = base64.urlsafe_b64decode(value.removeprefix("ek_") + "==")
    assert b"dragon" not in raw


def test_every_flipped_bit_is_refused(guarded: Authenticator) -> None:
    value = secret_of(guarded)
    raw = bytearray(base64.urlsafe_b64decode(value.removeprefix("ek_") + "=="))
    for position in range(len(raw) * 8):
        raw[position // 8] ^= 1 << position % 8
        forged = "ek_" + base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")
        raw[position // 8] ^= 1 << position % 8
        with pytest.raises(AuthError):
            guarded.authenticate(bearer(forged), NOW_S)


def test_a_secret_of_another_pool_or_of_a_removed_key_is_refused(
    guarded: Authenticator, keys_file: Path
) -> None:
    value = secret_of(guarded)
    with pytest.raises(AuthError):
        Authenticator(b"another secret 0123", load_api_keys(keys_file)).authenticate(
            bearer(value), NOW_S
        )
    keys_file.write_text("cron sk-other-0123456789\n")
    with pytest.raises(AuthError):
        Authenticator(SEAL, load_api_keys(keys_file)).authenticate(bearer(value), NOW_S)
    assert Authenticator(SEAL).authenticate(bearer(value), NOW_S).name == "web"


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        ([], None),
        ("x", None),
        ({"session": []}, "session"),
        ({"limits": 1}, "limits"),
        ({"expires_after": 5}, "expires_after"),
        *(
            ({"expires_after": {"seconds": seconds}}, "expires_after.seconds")
            for seconds in (-1, 0, 9, 7_201, 60.0, 60.5, True, "60", None, 10**4_000)
        ),
        ({"expires_after": {"anchor": "now", "seconds": 60}}, "expires_after.anchor"),
        ({"limits": {"max_call_seconds": 0}}, "limits.max_call_seconds"),
        ({"limits": {"max_call_seconds": "60"}}, "limits.max_call_seconds"),
        ({"limits": {"updatable": "voice"}}, "limits.updatable"),
        ({"limits": {"updatable": [1]}}, "limits.updatable"),
        ({"session": {"instructions": "x" * 70_000}}, "session"),
    ],
)
def test_bad_requests_for_a_secret_are_400_and_name_what_is_wrong(
    guarded: Authenticator, request_body: Any, param: str | None
) -> None:
    with pytest.raises(AuthError) as caught:
        guarded.make_client_secret(Principal("web"), request_body, NOW_S)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_secret_fits_a_header_or_is_refused(guarded: Authenticator) -> None:
    assert (
        len(secret_of(guarded, session={"instructions": "long " * 2_000})) < CLIENT_SECRET_MAX_CHARS
    )
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))
    with pytest.raises(AuthError) as caught:
        secret_of(guarded, session={"instructions": noise})
    assert caught.value.code == "session_too_large"


def test_a_secret_cannot_make_a_secret(guarded: Authenticator) -> None:
    holder = guarded.authenticate(bearer(secret_of(guarded)), NOW_S)
    with pytest.raises(AuthError) as caught:
        guarded.make_client_secret(holder, {}, NOW_S)
    assert caught.value.status == 403


def test_ownership(guarded: Authenticator) -> None:
    key, other = Principal("web"), Principal("cron")
    first = guarded.authenticate(bearer(secret_of(guarded)), NOW_S)
    second = guarded.authenticate(bearer(secret_of(guarded)), NOW_S)
    assert key.owns(key)
    assert key.owns(first)
    assert first.owns(first)
    assert not first.owns(second)
    assert not first.owns(key)
    assert not other.owns(first)
