"""What the bridge tells a backend again after its connection broke, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.bridge_events import Sink, delta, done, server, session_update, types
from transceiver.backends.bridge import Bridge
from transceiver.backends.dialect import Dialect


def test_replay_brings_back_session_and_conversation(bridge: Bridge) -> None:
    bridge.from_client('{"type": "session.update", "session": {"instructions": "be brief"}}')
    user = {
        "id": "u1",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_audio", "transcript": None}],
    }
    model = {"id": "a1", "type": "message", "role": "assistant", "content": []}
    bridge.from_backend(server("conversation.item.added", item=user, previous_item_id=None))
    bridge.from_backend(server("conversation.item.added", item=model, previous_item_id="u1"))
    transcribed = "conversation.item.input_audio_transcription.completed"
    bridge.from_backend(server(transcribed, item_id="u1", content_index=0, transcript="hello"))
    spoken = "response.output_audio_transcript.done"
    bridge.from_backend(
        server(spoken, response_id="r", item_id="a1", content_index=0, transcript="hi there")
    )
    session, first, second = bridge.reconnected().to_backend
    assert session["session"]["instructions"] == "be brief"
    assert session["session"]["audio"]["input"]["format"]["rate"] == 24_000
    assert first["item"]["content"] == [{"type": "input_text", "text": "hello"}]
    assert second["item"]["content"] == [{"type": "output_text", "text": "hi there"}]


def test_after_a_reconnect_responses_fail_and_replayed_items_stay_here(
    bridge: Bridge, sink: Sink
) -> None:
    bridge.from_client(session_update(instructions="i"))
    bridge.from_backend(server("session.updated", session={}))
    bridge.from_backend(server("response.created", response={"id": "resp_1"}))
    bridge.from_backend(delta(200))
    part = {"type": "input_text", "text": "hello"}
    item = {"id": "u1", "type": "message", "role": "user", "content": [part]}
    bridge.from_backend(server("conversation.item.added", item=item))
    out = bridge.reconnected()
    assert [(e["type"], e["response"]["id"], e["response"]["status"]) for e in out.to_client] == [
        ("response.done", "resp_1", "failed")
    ]
    assert types(out.to_backend) == ["session.update", "conversation.item.create"]
    for answer in (
        server("session.created", session={"id": "sess_2"}),
        server("session.updated", session={}),
        server("conversation.item.added", item=item),
        server("conversation.item.done", item=item),
    ):
        assert bridge.from_backend(answer).to_client == []
    sink.pass_ms(200)
    assert types(bridge.advance(0.0).to_client) == ["output_audio_buffer.stopped"]


def test_a_session_of_nothing_is_sent_again_for_its_formats(bridge: Bridge) -> None:
    (update,) = bridge.reconnected().to_backend
    assert update["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}


def test_what_was_on_its_way_is_asked_again_after_a_reconnect(bridge: Bridge) -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    for event in (
        {"type": "conversation.item.create", "event_id": "e1", "item": output},
        {"type": "response.create"},
        {"type": "input_audio_buffer.clear"},
    ):
        bridge.from_client(json.dumps(event))
    _, *again = bridge.reconnected().to_backend
    assert types(again) == ["conversation.item.create", "response.create"]
    assert again[0]["item"] == output
    assert types(bridge.reconnected(frozenset({"e1"})).to_backend[1:]) == ["response.create"]


@pytest.mark.parametrize(
    "answers",
    [
        [
            {"type": "conversation.item.added", "item": {"id": "i9", "type": "message", "role": "user"}},
            {"type": "response.created", "response": {"id": "resp_1"}},
        ],
        [
            {"type": "error", "error": {"event_id": "e1", "code": "c"}},
            {"type": "error", "error": {"event_id": "e2", "code": "c"}},
        ],
    ],
)  # fmt: skip
def test_what_was_answered_is_not_asked_again(bridge: Bridge, answers: list[Any]) -> None:
    item = {"type": "message", "role": "user"}
    bridge.from_client(
        json.dumps({"type": "conversation.item.create", "event_id": "e1", "item": item})
    )
    bridge.from_client(json.dumps({"type": "response.create", "event_id": "e2"}))
    for answer in answers:
        bridge.from_backend(json.dumps(answer))
    assert "response.create" not in types(bridge.reconnected().to_backend)
    assert [e for e in bridge.reconnected().to_backend if e.get("event_id") == "e1"] == []


def test_a_spoken_turn_is_no_answer_to_a_typed_one(bridge: Bridge) -> None:
    typed = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    bridge.from_client(json.dumps({"type": "conversation.item.create", "item": typed}))
    spoken = {"id": "u", **typed, "content": [{"type": "input_audio", "transcript": None}]}
    bridge.from_backend(server("conversation.item.added", item=spoken))
    assert types(bridge.reconnected().to_backend[1:]) == ["conversation.item.create"]


def test_an_update_whose_answer_was_lost_is_answered_from_here(bridge: Bridge) -> None:
    bridge.from_client(session_update(instructions="i"))
    out = bridge.reconnected()
    assert types(out.to_client) == ["session.updated"]
    assert out.to_client[0]["session"]["instructions"] == "i"
    assert bridge.from_backend(server("session.updated", session={})).to_client == []


def test_what_nobody_heard_is_not_replayed(bridge: Bridge, sink: Sink) -> None:
    item = {"id": "item_1", "type": "message", "role": "assistant", "content": []}
    bridge.from_backend(server("conversation.item.added", item=item))
    bridge.from_backend(delta(1_000))
    bridge.from_backend(
        server(
            "response.output_audio_transcript.done",
            item_id="item_1",
            content_index=0,
            transcript="one two three four five six seven eight",
        )
    )
    sink.pass_ms(500)
    bridge.from_client('{"type":"output_audio_buffer.clear"}')
    _, replayed = bridge.reconnected().to_backend
    assert replayed["item"]["content"] == [{"type": "output_text", "text": "one two three four"}]


@pytest.mark.parametrize("name", [None, 5, ["x"], "n" * 10_000])
def test_a_response_without_a_name_is_not_told_as_failed(bridge: Bridge, name: Any) -> None:
    bridge.from_backend(server("response.created", response={"id": name}))
    bridge.from_backend(server("response.created", response={}))
    assert bridge.reconnected().to_client == []


@pytest.mark.parametrize("before_ms", [0, 20], ids=["before any sound", "queued only"])
def test_what_was_interrupted_before_it_was_heard_is_not_replayed(
    bridge: Bridge, before_ms: int
) -> None:
    bridge.from_backend(server("response.created", response={"id": "resp_1"}))
    content = [{"type": "output_audio", "transcript": "nobody heard this"}]
    item = {"id": "item_1", "type": "message", "role": "assistant", "content": content}
    bridge.from_backend(server("conversation.item.added", item=item))
    if before_ms:
        bridge.from_backend(delta(before_ms))
    assert bridge.from_client('{"type":"output_audio_buffer.clear"}').to_backend == []
    bridge.from_backend(delta(1_000))
    assert types(bridge.reconnected().to_backend) == ["session.update"]


@pytest.mark.parametrize("before", ["playing", "cut", "cut after", "ended"])
def test_a_new_connection_may_name_its_responses_as_the_old_one_did(
    bridge: Bridge, sink: Sink, before: str
) -> None:
    clear = '{"type":"output_audio_buffer.clear"}'
    bridge.from_backend(delta(100))
    if before == "cut":
        bridge.from_client(clear)
    elif before == "ended":
        sink.pass_ms(100)
        bridge.from_backend(done())
    bridge.reconnected()
    if before == "cut after":
        bridge.from_client(clear)
    events = bridge.from_backend(delta(200, item="item_2")).to_client
    sink.pass_ms(100)
    events += bridge.advance(0.0).to_client
    sink.pass_ms(100)
    assert bridge.advance(0.0).to_client == []
    sink.pass_ms(100)
    events += bridge.from_backend(done()).to_client
    events += bridge.advance(0.0).to_client
    told = [event["type"].rpartition(".")[2] for event in events]
    first = ["stopped"] if before == "playing" else []
    assert told == [*first, "started", "done", "stopped"]


@pytest.mark.parametrize("beta", [False, True])
def test_a_called_function_is_replayed_with_its_arguments_and_nothing_else(
    sink: Sink, beta: bool
) -> None:
    bridge = Bridge(Dialect(beta=beta), sink)
    call = {"id": "f1", "type": "function_call", "name": "f", "call_id": "c1"}
    begun = {**call, "object": "realtime.item", "status": "in_progress", "arguments": ""}
    ended = {**call, "object": "realtime.item", "status": "completed", "arguments": '{"a":1}'}
    bridge.from_backend(server(f"conversation.item.{'created' if beta else 'added'}", item=begun))
    [_] = bridge.reconnected().to_backend  # nobody has called it yet
    bridge.from_backend(server(f"conversation.item.{'created' if beta else 'added'}", item=begun))
    if not beta:
        bridge.from_backend(server("conversation.item.done", item=ended))
    bridge.from_backend(server("response.output_item.done", response_id="r", item=ended))
    _, again = bridge.reconnected().to_backend
    assert again["item"] == {**call, "arguments": '{"a":1}'}


def test_a_text_of_a_beta_backend_is_replayed(sink: Sink) -> None:
    bridge = Bridge(Dialect(beta=True), sink)
    begun = {"id": "a1", "type": "message", "role": "assistant", "content": []}
    ended = {**begun, "content": [{"type": "text", "text": "hello"}]}
    bridge.from_backend(server("conversation.item.created", item=begun))
    bridge.from_backend(server("response.output_item.done", response_id="r", item=ended))
    _, again = bridge.reconnected().to_backend
    assert again["item"]["content"] == [{"type": "text", "text": "hello"}]


def test_an_item_out_of_band_is_not_replayed(bridge: Bridge) -> None:
    content = [{"type": "output_text", "text": "classified"}]
    item = {"id": "o1", "type": "message", "role": "assistant", "content": content}
    bridge.from_backend(server("response.output_item.done", response_id="r", item=item))
    assert types(bridge.reconnected().to_backend) == ["session.update"]


@pytest.mark.parametrize("done", [False, True])
def test_a_replayed_item_that_the_client_makes_anew_is_told(bridge: Bridge, done: bool) -> None:
    """As stock SDKs do to change the history: a delete, and a create with the same id."""
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": "u1", "type": "message", "role": "user", "content": content}
    bridge.from_backend(server("conversation.item.added", item=item))
    bridge.reconnected()
    assert not bridge.from_backend(server("conversation.item.added", item=item)).to_client
    if done:
        assert not bridge.from_backend(server("conversation.item.done", item=item)).to_client
    for event in (
        server("conversation.item.deleted", item_id="u1"),
        server("conversation.item.added", item=item),
        server("conversation.item.done", item=item),
    ):
        assert len(bridge.from_backend(event).to_client) == 1
    assert len(bridge.reconnected().to_backend) == 2


@pytest.mark.parametrize("verb", ["delete", "retrieve"])
def test_what_was_asked_of_an_item_is_asked_again_until_it_is_answered(
    bridge: Bridge, verb: str
) -> None:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": "u1", "type": "message", "role": "user", "content": content}
    bridge.from_backend(server("conversation.item.added", item=item))
    asked = {"type": f"conversation.item.{verb}", "event_id": "mine", "item_id": "u1"}
    bridge.from_client(json.dumps(asked))
    assert bridge.reconnected().to_backend[-1] == asked
    bridge.from_backend(server(f"conversation.item.{verb}d", item_id="u1", item=item))
    assert asked not in bridge.reconnected().to_backend
