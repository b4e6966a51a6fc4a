"""What is known of a call's session: what the backend has taken of what was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.bridge_events import Sink, delta, greet, server, types
from transceiver.backends.bridge import Bridge
from transceiver.backends.dialect import FORMATS, Dialect
from transceiver.backends.session_record import SESSION_MAX_BYTES, SessionRecord, merge


def ask(bridge: Bridge, name: str, **session: Any) -> None:
    event = {"type": "session.update", "event_id": name, "session": session}
    bridge.from_client(json.dumps(event))


def refusal(name: str) -> str:
    error = {"type": "invalid_request_error", "message": "Unknown parameter", "event_id": name}
    return server("error", error=error)


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="objects"),
        pytest.param({"a": {"b": 1}}, {"a": None}, {"a": None}, id="nothing"),
        pytest.param({"a": [1]}, {"a": [2]}, {"a": [2]}, id="lists"),
        pytest.param(
            {"turn_detection": {"type": "server_vad", "threshold": 0.3}},
            {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}},
            {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}},
            id="another type",
        ),
        pytest.param(
            {"turn_detection": {"type": "server_vad", "threshold": 0.3}},
            {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 6_000}},
            {"turn_detection": {"type": "server_vad", "threshold": 0.3, "idle_timeout_ms": 6_000}},
            id="the same type",
        ),
        pytest.param(
            {"prompt": {"id": "p1", "variables": {"city": "Bonn"}}},
            {"prompt": {"id": "p2"}},
            {"prompt": {"id": "p2"}},
            id="another prompt",
        ),
        pytest.param(
            {"type": "realtime", "instructions": "x"},
            {"type": "transcription"},
            {"type": "transcription", "instructions": "x"},
            id="the session itself",
        ),
    ],
)
def test_an_object_that_says_it_is_another_replaces(
    before: dict[str, Any], after: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge(before, after) == merged


def test_what_a_backend_refused_is_not_asked_of_the_next_connection(bridge: Bridge) -> None:
    ask(bridge, "good", instructions="be brief")
    ask(bridge, "bad", temperature=7)
    bridge.from_backend(server("session.updated", session={}))
    bridge.from_backend(refusal("bad"))
    [again] = bridge.reconnected().to_backend
    assert again["session"]["instructions"] == "be brief"
    assert "temperature" not in again["session"]


def test_what_a_backend_refused_changes_nothing_here(bridge: Bridge, sink: Sink) -> None:
    quiet = {"turn_detection": {"type": "server_vad", "interrupt_response": False}}
    ask(bridge, "bad", audio={"input": {**quiet, "format": {"type": "audio/pcmu"}}})
    bridge.from_backend(refusal("bad"))
    bridge.from_backend(delta(500))
    bridge.from_backend(server("input_audio_buffer.speech_started", item_id="u1"))
    assert sink.flushes == 1
    [told] = bridge.from_backend(server("session.updated", session={})).to_client
    assert "format" not in told["session"]["audio"]["input"]


def test_updates_of_one_event_id_are_each_kept(bridge: Bridge) -> None:
    ask(bridge, "x", instructions="be brief")
    ask(bridge, "x", tools=[])
    [again] = bridge.reconnected().to_backend
    assert (again["session"]["instructions"], again["session"]["tools"]) == ("be brief", [])


def test_an_update_that_waits_goes_up_once_and_may_still_be_refused(bridge: Bridge) -> None:
    ask(bridge, "sent", instructions="be brief")
    ask(bridge, "waits", temperature=7)
    [again] = bridge.reconnected(frozenset({"waits"})).to_backend
    assert "temperature" not in again["session"]
    bridge.from_backend(server("session.updated", session={}))
    bridge.from_backend(refusal("waits"))
    [again] = bridge.reconnected().to_backend
    assert again["session"]["instructions"] == "be brief"
    assert "temperature" not in again["session"]


def test_a_session_of_the_calls_beginning_that_is_refused_is_told(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    own = bridge.configure({"instructions": "be brief", "temperature": 7})
    greet(bridge)
    [told] = bridge.from_backend(refusal(own["event_id"])).to_client
    assert (told["type"], told["error"]["message"]) == ("error", "Unknown parameter")
    assert told["error"]["event_id"] is None
    assert bridge.configured
    assert bridge.refused_sessions == 1
    formats = bridge.configure({})
    assert "instructions" not in formats["session"]
    assert types(bridge.from_backend(refusal(formats["event_id"])).to_client) == ["error"]
    assert bridge.refused_sessions == 1  # else it would be asked for without end


def test_a_session_that_is_refused_at_a_reconnect_is_told_and_kept(bridge: Bridge) -> None:
    quiet = {"turn_detection": {"type": "server_vad", "interrupt_response": False}}
    ask(bridge, "good", audio={"input": quiet})
    bridge.from_backend(server("session.updated", session={}))
    size_bytes = bridge._kept.size_bytes
    for _ in range(2):
        [again] = bridge.reconnected().to_backend
        assert bridge._kept.size_bytes < size_bytes + 1_000
        assert again["session"]["audio"]["input"]["turn_detection"] == quiet["turn_detection"]
        bridge.from_backend(server("session.created", session={"audio": {"input": quiet}}))
        assert types(bridge.from_backend(refusal(again["event_id"])).to_client) == ["error"]
    assert bridge.refused_sessions == 2
    assert bridge._kept.size_bytes == size_bytes


def test_what_waits_for_an_answer_is_bounded() -> None:
    record = SessionRecord()
    for number in range(64):
        record.ask(f"u{number}", {"instructions": str(number) * (SESSION_MAX_BYTES // 8)})
    assert record.size_bytes < 3 * SESSION_MAX_BYTES
    assert record.outgrown == 0
    record.ask("large", {"tools": ["x" * SESSION_MAX_BYTES]})
    assert record.outgrown == 1
    assert "tools" not in record.hoped


@pytest.mark.parametrize("beta", [False, True])
def test_one_response_has_the_bridges_format_too(sink: Sink, beta: bool) -> None:
    """Else its sound would be taken for another encoding, which is noise as loud as it gets."""
    bridge = Bridge(Dialect(beta=beta), sink)
    greet(bridge)
    output = {"format": {"type": "audio/pcmu"}, "voice": "marin"}
    event = {"type": "response.create", "response": {"audio": {"output": output}}}
    [up] = bridge.from_client(json.dumps(event)).to_backend
    if beta:
        assert up["response"] == {"output_audio_format": "pcm16", "voice": "marin"}
    else:
        ours = {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "marin"}
        assert up["response"] == {"audio": {"output": ours}}


def test_a_session_of_transcription_has_no_output(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    greet(bridge)
    asked = {"type": "transcription", "audio": {"input": {"transcription": {"model": "w"}}}}
    up = bridge.configure(asked)["session"]
    assert up["type"] == "transcription"
    assert list(up["audio"]) == ["input"]
    assert up["audio"]["input"]["format"]["rate"] == 24_000


@pytest.mark.parametrize(
    ("backend", "asked", "passes"),
    [
        ("pcm24", None, True),
        ("pcm24", {"type": "audio/pcm"}, True),
        ("pcm24", {"type": "audio/pcm", "rate": 24_000}, True),
        ("pcm24", {"type": "audio/pcmu"}, False),
        ("pcm16", None, False),
        ("pcm16", {"type": "audio/pcm", "rate": 16_000}, True),
        ("pcmu", None, False),
        ("pcmu", {"type": "audio/pcmu"}, True),
    ],
)
def test_sound_in_events_passes_only_where_the_backend_takes_it_as_it_is(
    sink: Sink, backend: str, asked: dict[str, Any] | None, passes: bool
) -> None:
    bridge = Bridge(Dialect(format=FORMATS[backend]), sink)
    greet(bridge)
    if asked is not None:
        ask(bridge, "u", audio={"input": {"format": asked}})
        bridge.from_backend(server("session.updated", session={}))
    event = {"type": "input_audio_buffer.append", "event_id": "mine", "audio": "AAAA"}
    out = bridge.from_client(json.dumps(event))
    assert types(out.to_backend) == (["input_audio_buffer.append"] if passes else [])
    assert [e["error"]["event_id"] for e in out.to_client] == ([] if passes else ["mine"])
