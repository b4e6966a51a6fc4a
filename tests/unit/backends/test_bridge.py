"""The bridge between a client and a Realtime backend, event by event, with a sink whose clock the test moves."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.bridge_events import MS, Sink, delta, done, greet, server, session_update, types
from transceiver.backends.bridge import Bridge
from transceiver.backends.dialect import FORMATS, Dialect


def test_unknown_events_pass_both_ways_unchanged(bridge: Bridge) -> None:
    event = {"type": "future.thing", "event_id": "e9", "data": [1, {"x": None}]}
    assert bridge.from_client(json.dumps(event)).to_backend == [event]
    assert bridge.from_backend(json.dumps(event)).to_client == [event]


def test_audio_deltas_stay_here_and_start_the_buffer_once(bridge: Bridge, sink: Sink) -> None:
    first, second = bridge.from_backend(delta(200)), bridge.from_backend(delta(200))
    assert types(first.to_client) == ["output_audio_buffer.started"]
    assert first.to_client[0]["response_id"] == "resp_1"
    assert second.to_client == []
    assert sum(left for _, left in sink.queue) == 400


def test_stopped_comes_after_done_and_the_last_sample(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(100))
    sink.pass_ms(100)
    assert bridge.advance(0.0).to_client == []  # played to its end, but more may come
    bridge.from_backend(delta(100))
    assert types(bridge.from_backend(done()).to_client) == ["response.done"]
    sink.pass_ms(99)
    assert bridge.advance(0.0).to_client == []
    sink.pass_ms(1)
    assert types(bridge.advance(0.0).to_client) == ["output_audio_buffer.stopped"]
    assert bridge.advance(0.0).to_client == []


def test_a_fully_played_response_stops_right_behind_its_done(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(100))
    sink.pass_ms(100)
    assert types(bridge.from_backend(done()).to_client) == [
        "response.done",
        "output_audio_buffer.stopped",
    ]


def test_the_next_response_starts_when_the_one_before_is_heard(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(100))
    bridge.from_backend(done())
    assert bridge.from_backend(delta(100, "resp_2", "item_2")).to_client == []
    sink.pass_ms(100)
    assert types(bridge.advance(0.0).to_client) == [
        "output_audio_buffer.stopped",
        "output_audio_buffer.started",
    ]


def created(response: str) -> str:
    return server("response.created", response={"id": response, "status": "in_progress"})


SPEECH = server("input_audio_buffer.speech_started", item_id="u1", audio_start_ms=5)
CLEAR = '{"type": "output_audio_buffer.clear"}'


def test_a_response_whose_end_is_never_said_is_over_when_a_later_one_is(
    bridge: Bridge, sink: Sink
) -> None:
    bridge.from_backend(delta(100))
    bridge.from_backend(delta(100, "resp_2", "item_2"))
    sink.pass_ms(100)
    [started] = bridge.advance(0.0).to_client
    assert (started["type"], started["response_id"]) == ("output_audio_buffer.started", "resp_2")
    sink.pass_ms(100)
    bridge.from_backend(delta(100, "resp_3", "item_3"))
    out = bridge.from_backend(done("resp_2")).to_client[1:]
    assert [(event["type"].rpartition(".")[2], event["response_id"]) for event in out] == [
        ("stopped", "resp_1"),
        ("stopped", "resp_2"),
        ("started", "resp_3"),
    ]


def test_overlapping_responses_start_and_stop_once_each(bridge: Bridge, sink: Sink) -> None:
    events = []
    for response in ("resp_1", "resp_2") * 3:
        events += bridge.from_backend(delta(100, response, f"item of {response}")).to_client
    for response in ("resp_2", "resp_1"):
        events += bridge.from_backend(done(response)).to_client
    sink.pass_ms(600)
    events += bridge.advance(0.0).to_client
    assert [
        (event["type"].rpartition(".")[2], event["response_id"])
        for event in events
        if event["type"] != "response.done"
    ] == [
        ("started", "resp_1"),
        ("stopped", "resp_1"),
        ("started", "resp_2"),
        ("stopped", "resp_2"),
    ]


def test_sound_after_the_end_is_played_and_blocks_nobody(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(100))
    sink.pass_ms(100)
    bridge.from_backend(done())
    assert types(bridge.from_backend(delta(100)).to_client) == ["output_audio_buffer.started"]
    sink.pass_ms(100)
    assert types(bridge.advance(0.0).to_client) == ["output_audio_buffer.stopped"]
    out = bridge.from_backend(delta(100, "resp_2", "item_2"))
    assert types(out.to_client) == ["output_audio_buffer.started"]


def test_responses_without_an_end_are_forgotten(bridge: Bridge, sink: Sink) -> None:
    for number in range(500):
        bridge.from_backend(delta(1, f"resp_{number}", "item"))
        sink.pass_ms(1)
        bridge.advance(0.0)
    assert len(bridge._playout._responses) <= 65


def test_a_clear_before_the_first_sound_holds(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(created("resp_1"))
    out = bridge.from_client(CLEAR)
    assert (out.to_client, out.to_backend, bridge.interruptions) == ([], [], 0)
    assert bridge.from_backend(delta(200)).to_client == []
    assert (sink.queue, bridge.late_audio_bytes) == ([], 200 * MS)
    assert types(bridge.from_backend(done()).to_client) == ["response.done"]
    bridge.from_backend(created("resp_2"))
    next_one = bridge.from_backend(delta(20, "resp_2", "item_2"))
    assert types(next_one.to_client) == ["output_audio_buffer.started"]


@pytest.mark.parametrize("status", ["cancelled", "completed"])
def test_speech_before_the_first_sound_ends_what_the_backend_cancels(
    bridge: Bridge, sink: Sink, status: str
) -> None:
    bridge.from_backend(created("resp_1"))
    assert types(bridge.from_backend(SPEECH).to_client) == ["input_audio_buffer.speech_started"]
    bridge.from_backend(delta(200))
    sink.pass_ms(20)
    out = bridge.from_backend(server("response.done", response={"id": "resp_1", "status": status}))
    if status == "completed":
        assert types(out.to_client) == ["response.done"]
        assert sum(left for _, left in sink.queue) == 180
    else:
        assert types(out.to_client) == ["response.done", "output_audio_buffer.cleared"]
        assert [event["audio_end_ms"] for event in out.to_backend] == [20]
        assert sink.queue == []


def test_interruptions_in_quick_succession_cut_each_response_once(
    bridge: Bridge, sink: Sink
) -> None:
    cuts = []
    for number in range(3):
        bridge.from_backend(created(f"resp_{number}"))
        bridge.from_backend(delta(500, f"resp_{number}", f"item_{number}"))
        sink.pass_ms(50)
        for message in (SPEECH, SPEECH, CLEAR):
            out = bridge.from_client(message) if message == CLEAR else bridge.from_backend(message)
            cuts += [(event["item_id"], event["audio_end_ms"]) for event in out.to_backend]
        bridge.from_backend(delta(500, f"resp_{number}", f"item_{number}"))
    assert cuts == [("item_0", 50), ("item_1", 50), ("item_2", 50)]
    assert (sink.queue, bridge.interruptions) == ([], 3)


def test_samples_that_a_backend_cuts_through_come_together_again(sink: Sink) -> None:
    heard = {"item_1": b"", "item_2": b""}
    names = iter(("item_1", "item_2"))
    of: dict[int, str] = {}

    class Ear(Sink):
        def write(self, generation: int, pcm: bytes) -> int:
            heard[of.setdefault(generation, next(names, ""))] += pcm
            return len(pcm)

    bridge = Bridge(Dialect(), Ear())
    greet(bridge)
    sound = bytes(range(200))
    for at in range(0, 200, 7):
        for item in ("item_1", "item_2"):
            audio = base64.b64encode(sound[at : at + 7]).decode()
            where = {"response_id": "resp_1", "item_id": item, "content_index": 0}
            bridge.from_backend(server("response.output_audio.delta", delta=audio, **where))
    assert heard == {"item_1": sound, "item_2": sound}
    assert bridge.backend_garbage == 0


def test_a_delta_of_nothing_is_nothing(bridge: Bridge, sink: Sink) -> None:
    assert bridge.from_backend(delta(0)).to_client == []
    assert (sink.queue, bridge.backend_garbage) == ([], 0)


def test_speech_cuts_exactly_once_at_what_was_played(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(10_000))
    sink.pass_ms(1_000)
    out = bridge.from_backend(
        server("input_audio_buffer.speech_started", item_id="u1", audio_start_ms=5)
    )
    assert sink.flushes == 1
    assert types(out.to_client) == [
        "input_audio_buffer.speech_started",
        "output_audio_buffer.cleared",
    ]
    [truncate] = out.to_backend
    assert truncate["type"] == "conversation.item.truncate"
    assert (truncate["item_id"], truncate["content_index"], truncate["audio_end_ms"]) == (
        "item_1",
        0,
        1_000,
    )
    again = bridge.from_backend(
        server("input_audio_buffer.speech_started", item_id="u1", audio_start_ms=9)
    )
    assert (types(again.to_client), again.to_backend) == (["input_audio_buffer.speech_started"], [])


def test_late_deltas_of_a_cut_response_are_dropped(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(500))
    sink.pass_ms(100)
    bridge.from_client('{"type": "output_audio_buffer.clear"}')
    assert bridge.from_backend(delta(500)).to_client == []
    assert sink.queue == []
    assert bridge.late_audio_bytes == 500 * MS
    assert types(bridge.from_backend(delta(20, "resp_2", "item_2")).to_client) == [
        "output_audio_buffer.started"
    ]


@pytest.mark.parametrize(
    ("played_ms", "finished", "cut_ms"),
    [
        (0, False, None),
        (0, True, None),
        (300, True, None),
        (300, False, 300),
        (299, True, 299),
        (1, True, 1),
    ],
)
def test_cut_is_clamped_and_skipped_at_the_ends(
    bridge: Bridge, sink: Sink, played_ms: int, finished: bool, cut_ms: int | None
) -> None:
    bridge.from_backend(delta(300))
    sink.pass_ms(played_ms)
    if finished and played_ms < 300:
        bridge.from_backend(done())
    elif finished:
        bridge._playout.response_done(
            "resp_1"
        )  # done, but no wake-up since: not yet told as stopped
    out = bridge.from_client('{"type": "output_audio_buffer.clear"}')
    assert types(out.to_client) == ["output_audio_buffer.cleared"]
    assert [event["audio_end_ms"] for event in out.to_backend] == (
        [] if cut_ms is None else [cut_ms]
    )


def test_two_items_in_one_reply_are_cut_apart(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(delta(200, item="item_1"))
    where = {"response_id": "resp_1", "item_id": "item_1", "content_index": 0, "output_index": 0}
    bridge.from_backend(server("response.output_audio.done", **where))
    bridge.from_backend(delta(200, item="item_2"))
    sink.pass_ms(250)
    out = bridge.from_client('{"type": "output_audio_buffer.clear"}')
    assert [(event["item_id"], event["audio_end_ms"]) for event in out.to_backend] == [
        ("item_2", 50)
    ]


def test_interrupt_response_false_lets_the_model_finish(bridge: Bridge, sink: Sink) -> None:
    session = {
        "type": "realtime",
        "audio": {"input": {"turn_detection": {"interrupt_response": False}}},
    }
    bridge.from_client(json.dumps({"type": "session.update", "session": session}))
    bridge.from_backend(delta(500))
    out = bridge.from_backend(
        server("input_audio_buffer.speech_started", item_id="u1", audio_start_ms=5)
    )
    assert (types(out.to_client), out.to_backend, sink.flushes) == (
        ["input_audio_buffer.speech_started"],
        [],
        0,
    )


def test_clear_with_nothing_to_clear_is_silent(bridge: Bridge, sink: Sink) -> None:
    out = bridge.from_client('{"type": "output_audio_buffer.clear", "event_id": "c1"}')
    assert (out.to_client, out.to_backend) == ([], [])


def test_formats_go_up_as_ours_and_come_back_as_asked(sink: Sink) -> None:
    bridge = Bridge(Dialect(format=FORMATS["pcm16"]), sink)
    greet(bridge)
    asked = {"type": "audio/pcm", "rate": 24_000}
    session = {
        "type": "realtime",
        "audio": {"input": {"format": asked}, "output": {"format": asked, "voice": "x"}},
    }
    [up] = bridge.from_client(json.dumps({"type": "session.update", "session": session})).to_backend
    assert up["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 16_000}
    assert up["session"]["audio"]["output"] == {
        "format": {"type": "audio/pcm", "rate": 16_000},
        "voice": "x",
    }
    [down] = bridge.from_backend(server("session.updated", session=up["session"])).to_client
    assert down["session"]["audio"]["input"]["format"] == asked
    assert down["session"]["audio"]["output"]["format"] == asked


def test_turn_detection_goes_up_unchanged(bridge: Bridge) -> None:
    for turn_detection in ({"type": "semantic_vad", "eagerness": "low"}, None):
        session = {"audio": {"input": {"turn_detection": turn_detection}}}
        [up] = bridge.from_client(
            json.dumps({"type": "session.update", "session": session})
        ).to_backend
        assert up["session"]["audio"]["input"]["turn_detection"] == turn_detection


def test_errors_keep_the_client_event_id_and_own_errors_stay(bridge: Bridge, sink: Sink) -> None:
    theirs = server(
        "error", error={"type": "invalid_request_error", "message": "x", "event_id": "client_7"}
    )
    assert bridge.from_backend(theirs).to_client[0]["error"]["event_id"] == "client_7"
    bridge.from_backend(delta(500))
    sink.pass_ms(100)
    [truncate] = bridge.from_client('{"type": "output_audio_buffer.clear"}').to_backend
    ours = server(
        "error",
        error={"type": "invalid_request_error", "message": "x", "event_id": truncate["event_id"]},
    )
    assert bridge.from_backend(ours).to_client == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\x00", "invalid_message"),
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ("[]", "invalid_event"),
        ('{"type": 7}', "invalid_event"),
        ('{"type": "session.update"}', "invalid_event"),
        ("x" * 300_000, "message_too_large"),
    ],
)
def test_client_garbage_is_answered_and_goes_nowhere(
    bridge: Bridge, message: str | bytes, code: str
) -> None:
    out = bridge.from_client(message)
    assert [event["error"]["code"] for event in out.to_client] == [code]
    assert out.to_backend == []


def test_many_fixed_fields_make_a_short_error(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink, updatable=[])
    session = {f"{'long' * 100}{number}": 1 for number in range(200)}
    [error] = bridge.from_client(
        json.dumps({"type": "session.update", "session": session})
    ).to_client
    assert error["error"]["code"] == "session_field_locked"
    assert len(json.dumps(error)) < 1_000


def test_an_event_without_a_type_is_refused_by_its_name(bridge: Bridge) -> None:
    [error] = bridge.from_client('{"event_id": "mine", "type": 5}').to_client
    assert error["error"]["event_id"] == "mine"


@pytest.mark.parametrize("name", ["bridge_1", "named_1"])
def test_a_client_may_call_its_events_what_it_likes(bridge: Bridge, name: str) -> None:
    update = {"type": "session.update", "event_id": name, "session": {}}
    bridge.from_client(json.dumps(update))
    refusal = {"type": "invalid_request_error", "message": "x", "event_id": name}
    [error] = bridge.from_backend(server("error", error=refusal)).to_client
    assert error["error"]["event_id"] == name
    bridge.from_client(json.dumps(update))
    out = bridge.from_backend(server("session.updated", session={}))
    assert types(out.to_client) == ["session.updated"]


@pytest.mark.parametrize(
    "message",
    [
        "",
        "nonsense",
        "[1]",
        '{"no": "type"}',
        '{"type": "response.output_audio.delta"}',
        '{"type": "response.output_audio.delta", "delta": "###", "item_id": "i", "response_id": "r"}',
        '{"type": "response.output_audio.delta", "delta": 5, "item_id": "i", "response_id": "r"}',
        '{"type": "response.output_audio.delta", "delta": "AAAA", "item_id": "i", "response_id": "r", "content_index": -1}',
        '{"type": "response.output_audio.delta", "delta": "AAAA", "item_id": "i", "response_id": "r", "content_index": true}',
    ],
)
def test_backend_garbage_is_counted_and_goes_nowhere(bridge: Bridge, message: str) -> None:
    out = bridge.from_backend(message)
    assert (out.to_client, out.to_backend, bridge.backend_garbage) == ([], [], 1)


def test_odd_shapes_of_known_events_do_not_raise(bridge: Bridge) -> None:
    for message in (
        server("session.created", session=None),
        server("session.created", session={"audio": {"input": 4}}),
        server("response.output_audio.done"),
        server("response.created", response=None),
        server("session.updated", session={"audio": 3}),
        server("response.done", response=[]),
        server("conversation.item.added", item={"id": 5}),
        server("error"),
        server("conversation.item.input_audio_transcription.completed", item_id=[], transcript=3),
    ):
        bridge.from_backend(message)
    assert bridge.backend_garbage == 0


def test_what_is_fixed_is_left_out_and_said(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink, updatable=["audio.output.voice", "tools"])
    session = {
        "type": "realtime",
        "instructions": "mine",
        "tools": [],
        "audio": {"input": {"turn_detection": None}, "output": {"voice": "v", "speed": 2}},
    }
    out = bridge.from_client(
        json.dumps({"type": "session.update", "event_id": "e1", "session": session})
    )
    [error] = out.to_client
    assert (error["error"]["code"], error["error"]["event_id"]) == ("session_field_locked", "e1")
    for path in ("instructions", "audio.input", "audio.output.speed"):
        assert path in error["error"]["message"]
    [up] = out.to_backend
    fmt = {"type": "audio/pcm", "rate": 24_000}
    assert up["session"] == {
        "type": "realtime",
        "tools": [],
        "audio": {"input": {"format": fmt}, "output": {"voice": "v", "format": fmt}},
    }


def test_what_is_fixed_is_left_out_of_one_response_too(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink, updatable=["audio.output.voice"])
    greet(bridge)
    free = {
        "conversation": "none",
        "input": [],
        "metadata": {"topic": "x"},
        "audio": {"output": {"voice": "marin"}},
    }
    response = {"instructions": "Say what you were told.", "tools": [], **free}
    event = {"type": "response.create", "event_id": "mine", "response": response}
    out = bridge.from_client(json.dumps(event))
    [error] = [event["error"] for event in out.to_client]
    assert (error["code"], error["param"], error["event_id"]) == (
        "session_field_locked",
        "instructions",
        "mine",
    )
    assert [event["response"] for event in out.to_backend] == [free]


@pytest.mark.parametrize("updatable", [None, ["audio.input"]])
def test_the_update_of_another_kind_of_session_is_no_way_round_what_is_fixed(
    sink: Sink, updatable: list[str] | None
) -> None:
    bridge = Bridge(Dialect(beta=True), sink, updatable=updatable)
    greet(bridge)
    event = {"type": "transcription_session.update", "event_id": "mine", "session": {"a": 1}}
    out = bridge.from_client(json.dumps(event))
    assert out.to_backend == ([event] if updatable is None else [])
    assert types(out.to_client) == ([] if updatable is None else ["error"])


def test_an_event_id_has_a_length(bridge: Bridge) -> None:
    for length, refused in ((512, False), (513, True)):
        event = {"type": "session.update", "event_id": "x" * length, "session": {}}
        out = bridge.from_client(json.dumps(event))
        assert (types(out.to_client) == ["error"], out.to_backend == []) == (refused, refused)


def test_what_a_response_is_given_to_read_is_beta_for_a_beta_backend(sink: Sink) -> None:
    bridge = Bridge(Dialect(beta=True), sink)
    greet(bridge)
    said = {"type": "message", "role": "assistant"}
    read = [{**said, "content": [{"type": "output_text", "text": "x"}]}, 5]
    event = {"type": "response.create", "response": {"conversation": "none", "input": read}}
    [up] = bridge.from_client(json.dumps(event)).to_backend
    assert up["response"] == {
        "conversation": "none",
        "input": [{**said, "content": [{"type": "text", "text": "x"}]}, 5],
    }


def test_beta_backend_looks_like_ga(sink: Sink) -> None:
    bridge = Bridge(Dialect(beta=True), sink)
    greet(bridge)
    session = {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {"turn_detection": None, "transcription": {"model": "m"}},
            "output": {"voice": "v"},
        },
    }
    [up] = bridge.from_client(json.dumps({"type": "session.update", "session": session})).to_backend
    assert up["session"] == {
        "turn_detection": None,
        "input_audio_transcription": {"model": "m"},
        "voice": "v",
        "modalities": ["text", "audio"],
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
    }
    [down] = bridge.from_backend(
        server("session.updated", session={**up["session"], "id": "sess_1"})
    ).to_client
    assert down["session"]["audio"]["output"]["voice"] == "v"
    assert down["session"]["id"] == "sess_1"
    audio = {
        "response_id": "r",
        "item_id": "i",
        "content_index": 0,
        "delta": base64.b64encode(bytes(960)).decode(),
    }
    assert types(bridge.from_backend(server("response.audio.delta", **audio)).to_client) == [
        "output_audio_buffer.started"
    ]
    item = {
        "id": "a",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "audio", "transcript": "x"}],
    }
    created = bridge.from_backend(server("conversation.item.created", item=item)).to_client
    assert types(created) == ["conversation.item.added", "conversation.item.done"]
    assert created[0]["item"]["content"][0]["type"] == "output_audio"
    named = bridge.from_backend(server("response.audio_transcript.delta", delta="x")).to_client
    assert types(named) == ["response.output_audio_transcript.delta"]


def test_session_created_reaches_the_client_exactly_once(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    first = bridge.from_backend(server("conversation.created", conversation={"id": "c"})).to_client
    assert types(first) == ["session.created", "conversation.created"]
    assert isinstance(first[0]["session"], dict)
    assert bridge.from_backend(server("session.created", session={"id": "late"})).to_client == []


def test_the_answer_to_the_bridges_own_update_stays_here(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    bridge.configure({"instructions": "from the server"})
    greet(bridge)
    bridge.from_client(session_update(tools=[]))
    updated = server("session.updated", session={})
    assert bridge.from_backend(updated).to_client == []
    assert types(bridge.from_backend(updated).to_client) == ["session.updated"]


def test_a_client_that_is_quicker_than_the_backend_waits_for_its_own_answer(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    bridge.from_client(session_update(instructions="the client's"))
    bridge.configure({"instructions": "the server's"})
    greet(bridge)
    assert bridge.from_backend(server("session.updated", session={})).to_client == []
    assert bridge.configured
    answered = bridge.from_backend(server("session.updated", session={})).to_client
    assert types(answered) == ["session.updated"]


def test_a_refused_own_update_does_not_eat_the_clients_answer(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    own = bridge.configure({"instructions": "x"})
    greet(bridge)
    bridge.from_client(session_update(tools=[]))
    error = {"type": "invalid_request_error", "message": "no", "event_id": own["event_id"]}
    assert types(bridge.from_backend(server("error", error=error)).to_client) == ["error"]
    assert types(bridge.from_backend(server("session.updated", session={})).to_client) == [
        "session.updated"
    ]


def test_an_error_never_names_an_event_id_that_the_client_did_not_give(bridge: Bridge) -> None:
    [up] = bridge.from_client(session_update(tools=5)).to_backend
    error = {"type": "invalid_request_error", "message": "no", "event_id": up["event_id"]}
    [down] = bridge.from_backend(server("error", error=error)).to_client
    assert (down["error"]["message"], down["error"]["event_id"]) == ("no", None)


def test_an_unanswered_update_is_answered_from_here_after_three_seconds(bridge: Bridge) -> None:
    asked = {"type": "audio/pcm", "rate": 24_000}
    bridge.from_client(session_update(instructions="i", audio={"input": {"format": asked}}))
    assert bridge.advance(100.0).to_client == []
    assert bridge.advance(102.9).to_client == []
    [updated] = bridge.advance(103.1).to_client
    assert (updated["type"], updated["session"]["instructions"]) == ("session.updated", "i")
    assert updated["session"]["audio"]["input"]["format"] == asked
    assert bridge.advance(200.0).to_client == []


def test_talk_and_listen_time(bridge: Bridge, sink: Sink) -> None:
    bridge.from_backend(server("input_audio_buffer.speech_started", audio_start_ms=200))
    bridge.from_backend(server("input_audio_buffer.speech_stopped", audio_end_ms=1_700))
    bridge.from_backend(delta(600, response="resp_1"))
    sink.pass_ms(400)
    assert (bridge.listen_ms, bridge.talk_ms) == (1_500, 400)
    bridge.from_client('{"type":"output_audio_buffer.clear"}')
    bridge.from_backend(delta(300, response="resp_2", item="item_2"))
    bridge.from_backend(done("resp_2"))
    sink.pass_ms(300)
    bridge.advance(0.0)
    assert bridge.talk_ms == 700
    for event in ("clear", "", "", "commit", ""):
        if event:
            bridge.from_client(json.dumps({"type": f"input_audio_buffer.{event}"}))
        else:
            bridge.microphone(bytes(100 * MS))
    assert bridge.listen_ms == 1_700


@pytest.mark.parametrize("value", [None, "1", True, -1, 1e300, [], {}])
def test_odd_moments_of_speech_count_nothing(bridge: Bridge, value: Any) -> None:
    bridge.from_backend(server("input_audio_buffer.speech_started", audio_start_ms=value))
    bridge.from_backend(server("input_audio_buffer.speech_stopped", audio_end_ms=5))
    bridge.from_backend(server("input_audio_buffer.speech_started", audio_start_ms=5))
    bridge.from_backend(server("input_audio_buffer.speech_stopped", audio_end_ms=value))
    assert bridge.listen_ms == 0


def test_a_ga_session_always_says_what_it_is(sink: Sink) -> None:
    bridge = Bridge(Dialect(), sink)
    assert bridge.configure({})["session"]["type"] == "realtime"
    [up] = bridge.from_client(session_update(tools=[])).to_backend
    assert up["session"]["type"] == "realtime"
    transcription = bridge.from_client(session_update(type="transcription")).to_backend
    assert transcription[0]["session"]["type"] == "transcription"


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize(
    "event",
    [
        {"type": "conversation.item.added", "previous_item_id": [1], "item": {"id": "a"}},
        {"type": "conversation.item.added", "item": {"id": [1]}},
        {"type": "conversation.item.added", "item": {"id": "a", "role": "assistant", "content": 5}},
        {"type": "conversation.item.done", "item": {"id": "a", "content": [{"type": []}]}},
        {"type": "session.updated", "session": {"audio": [1], "voice": "v"}},
        {"type": "session.updated", "session": {"audio": 3, "voice": "v"}},
        {"type": "response.done", "response": {"id": [1], "output": 5}},
        {"type": "error", "error": {"event_id": [1]}},
    ],
)
def test_no_shape_of_a_known_event_raises_either_way(
    sink: Sink, beta: bool, event: dict[str, Any]
) -> None:
    bridge = Bridge(Dialect(beta=beta), sink)
    greet(bridge)
    for _ in range(2):
        bridge.from_backend(json.dumps(event))
        bridge.from_client(json.dumps(event))
    bridge.from_client('{"type": "response.create", "item": null, "response": 7}')
    bridge.from_client('{"type": "conversation.item.create", "item": null}')
    bridge.from_backend(server("conversation.item.added", item={"id": "b"}))
    bridge.reconnected()


def test_deep_nesting_is_garbage_on_either_side(bridge: Bridge) -> None:
    for depth in (101, 900, 960, 999, 5_000):
        text = '{"type":"x","a":' + "[" * depth + "]" * depth + "}"
        assert bridge.from_client(text).to_client[0]["error"]["code"] == "invalid_json"
        assert bridge.from_backend(text).to_client == []
    assert bridge.backend_garbage == 5
    fine = '{"type":"x","a":' + "[" * 90 + "]" * 90 + ',"b":[' + "[]," * 200 + "[]]}"
    assert bridge.from_backend(fine).to_client
