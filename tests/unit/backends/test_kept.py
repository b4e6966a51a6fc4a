"""What a call keeps in bytes, and what its client hears when that is not everything (kept.py, talk.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.bridge_events import Sink, greet, server, session_update, types
from tests.unit.backends.test_talk import Line, Sound
from transceiver.backends.bridge import Bridge
from transceiver.backends.dialect import Dialect
from transceiver.backends.kept import KEPT_MAX_BYTES
from transceiver.backends.made import error_event
from transceiver.backends.sized import SizedEvents, size_of
from transceiver.backends.talk import WAITING_MAX_BYTES, Talk

LIMIT = "backend_replay_limit"


@pytest.fixture
def bridge() -> Bridge:
    bridge = Bridge(Dialect(), Sink())
    greet(bridge)
    return bridge


def codes(events: list[Any]) -> list[str]:
    return [event["error"]["code"] for event in events if event["type"] == "error"]


def said(item_id: str, text: str) -> str:
    part = {"type": "input_text", "text": text}
    item = {"id": item_id, "type": "message", "role": "user", "content": [part]}
    return server("conversation.item.added", item=item)


def asked(name: str, text: str) -> str:
    item = {"type": "function_call_output", "call_id": name, "output": text}
    return json.dumps({"type": "conversation.item.create", "event_id": name, "item": item})


def test_a_conversation_that_outgrows_its_bytes_loses_its_beginning_and_says_so(
    bridge: Bridge,
) -> None:
    told = []
    for index in range(30):
        told += codes(bridge.from_backend(said(f"u{index}", "x" * 50_000)).to_client)
        assert bridge._kept.size_bytes <= KEPT_MAX_BYTES
    assert told == [LIMIT], "once"
    assert 8 <= bridge.forgotten <= 10
    out = bridge.reconnected()
    assert codes(out.to_client) == [LIMIT]
    assert f" {bridge.forgotten} events" in out.to_client[0]["error"]["message"]
    kept = [event["item"]["id"] for event in out.to_backend[1:]]
    assert kept == [f"u{index}" for index in range(bridge.forgotten, 30)]


def test_what_is_unanswered_counts_and_outlives_the_conversation(bridge: Bridge) -> None:
    bridge.from_backend(said("u1", "hello"))
    told = []
    for index in range(6):
        told += codes(bridge.from_client(asked(f"e{index}", "x" * 250_000)).to_client)
    assert told == [LIMIT]
    assert bridge._kept.size_bytes <= KEPT_MAX_BYTES
    again = bridge.reconnected().to_backend[1:]
    assert [event["event_id"] for event in again] == ["e2", "e3", "e4", "e5"]


def test_many_small_events_are_bounded_too(bridge: Bridge) -> None:
    for index in range(5_000):
        bridge.from_client(asked(f"e{index}", ""))
    assert bridge._kept.size_bytes <= KEPT_MAX_BYTES
    assert len(bridge.reconnected().to_backend) < 2_049


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([said("u1", "x" * 300_000)], id="item"),
        pytest.param([said("u" * 300, "x")], id="name"),
    ],
)
def test_what_is_too_large_by_itself_is_said(bridge: Bridge, events: list[str]) -> None:
    assert codes([e for event in events for e in bridge.from_backend(event).to_client]) == [LIMIT]
    assert bridge.forgotten == 1


def test_a_session_that_is_too_large_is_said(bridge: Bridge) -> None:
    told = []
    for name in ("instructions", "prompt"):
        out = bridge.from_client(session_update(**{name: "x" * 200_000}))
        assert types(out.to_backend) == ["session.update"], "it goes up all the same"
        told += codes(out.to_client)
    assert told == [LIMIT]


def test_sound_and_images_are_not_kept(bridge: Bridge) -> None:
    parts = [
        {"type": "input_audio", "audio": "A" * 400_000, "transcript": "hi"},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400_000},
    ]
    item = {"id": "u1", "type": "message", "role": "user", "content": parts}
    assert codes(bridge.from_backend(server("conversation.item.added", item=item)).to_client) == []
    assert bridge._kept.size_bytes < 2_000


def test_the_bytes_of_a_conversation_are_those_of_its_items(bridge: Bridge) -> None:
    journal = bridge._kept.journal
    bridge.from_backend(said("u1", "first"))
    bridge.from_backend(said("u2", "second, behind it"))
    item = {"id": "a1", "type": "message", "role": "assistant", "content": []}
    bridge.from_backend(server("conversation.item.added", item=item, previous_item_id="u1"))
    heard = {"item_id": "a1", "content_index": 0, "transcript": "what it said"}
    bridge.from_backend(server("response.output_audio_transcript.done", **heard))
    bridge.from_backend(said("u2", "second, changed"))
    items = dict(journal._items.items())
    assert list(items) == ["u1", "a1", "u2"]
    assert items["a1"]["content"][0]["transcript"] == "what it said"
    assert journal.size_bytes == sum(map(size_of, items.values()))


def test_an_account_of_bytes_is_exact() -> None:
    events = SizedEvents()
    for name in "abcd":
        events.put(name, {"type": name * 10})
    events.put("b", {"type": "longer than before"})
    events.put_behind("a", "x", {"type": "x"})
    events.put_behind(None, "y", {"type": "y"})
    events.remove("c")
    assert events.remove_oldest() == "y"
    assert list(events) == ["a", "x", "b", "d"]
    assert events.size_bytes == sum(size_of(event) for _, event in events.items())


def test_what_waits_for_a_channel_is_bounded_and_the_client_told() -> None:
    line = Line()
    talk = Talk(line, Sound(), Bridge(Dialect(), Sound()))
    talk.on_backend(talk.bridge.from_backend(server("session.created", session={})))
    for _ in range(40):
        talk.on_backend(talk.bridge.from_backend(server("rate_limits.updated", x="x" * 50_000)))
    talk.on_open()
    assert (line.types()[0], line.types()[-1]) == ("session.created", "error")
    assert codes(line.events) == ["backend_events_lost"]
    arrived = line.types().count("rate_limits.updated")
    assert WAITING_MAX_BYTES // 52_000 <= arrived < 40
    assert talk.tally().forgotten == 40 - arrived


def test_an_error_of_the_bridges_own_is_the_servers() -> None:
    assert error_event(LIMIT, "")["error"]["type"] == "server_error"
