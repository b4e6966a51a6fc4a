"""The echo backend's model: turns, events in a real backend's order, and the settings of turn detection."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import pytest

from transceiver.backends.parrot import Parrot
from transceiver.backends.sized import SizedEvents
from transceiver.backends.vad import EnergyVad, VadSettings, level_dbfs

RATE_HZ = 24_000


def tone(duration_ms: int, amplitude: float = 0.3) -> bytes:
    samples = RATE_HZ * duration_ms // 1000
    return array(
        "h", [int(32767 * amplitude * math.sin(i * 0.1)) for i in range(samples)]
    ).tobytes()


def silence(duration_ms: int) -> bytes:
    return bytes(RATE_HZ * duration_ms // 1000 * 2)


def hear(parrot: Parrot, *sounds: bytes) -> list[dict[str, Any]]:
    data = b"".join(sounds)
    block = RATE_HZ // 50 * 2
    return [
        event for at in range(0, len(data), block) for event in parrot.hear(data[at : at + block])
    ]


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def spoken(events: list[dict[str, Any]]) -> bytes:
    return b"".join(
        base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta"
    )


def turn_detection(parrot: Parrot, value: dict[str, Any] | None) -> None:
    parrot.handle(
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": value}}}}
    )


def test_a_turn_is_said_back_with_a_real_backends_events() -> None:
    events = hear(Parrot(), silence(1_000), tone(800), silence(700))
    assert [kind for kind in types(events) if kind != "response.output_audio.delta"] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert len({event["event_id"] for event in events}) == len(events)
    seconds = len(spoken(events)) / 2 / RATE_HZ
    assert seconds == pytest.approx(
        0.3 + 0.8 + 0.5, abs=0.06
    )  # padding, speech, the silence that ended it
    started, stopped = events[0], events[1]
    assert started["audio_start_ms"] == pytest.approx(700, abs=40)
    assert stopped["audio_end_ms"] == pytest.approx(1_800, abs=40)


def test_a_thinking_pause_does_not_end_the_turn() -> None:
    parrot = Parrot()
    turn_detection(parrot, {"type": "server_vad", "silence_duration_ms": 2_000})
    events = hear(parrot, tone(500), silence(1_500), tone(500), silence(1_900))
    assert types(events) == ["input_audio_buffer.speech_started"]
    assert "response.done" in types(hear(parrot, silence(200)))


@pytest.mark.parametrize("padding_ms", [0, 100, 700])
def test_a_turn_begins_as_long_before_its_onset_as_asked(padding_ms: int) -> None:
    parrot = Parrot()
    turn_detection(parrot, {"type": "server_vad", "prefix_padding_ms": padding_ms})
    events = hear(parrot, silence(1_000), tone(500), silence(700))
    assert events[0]["audio_start_ms"] == pytest.approx(1_000 - padding_ms, abs=40)
    said = spoken(events)
    assert len(said) / 2 / RATE_HZ == pytest.approx(padding_ms / 1_000 + 0.5 + 0.5, abs=0.06)
    quiet_bytes = (padding_ms - 40) * RATE_HZ // 1_000 * 2
    if quiet_bytes > 0:
        assert level_dbfs(said[:quiet_bytes]) == -100.0


def test_threshold_and_click() -> None:
    quiet = tone(300, amplitude=0.02)  # about -37 dBFS
    assert EnergyVad(RATE_HZ, VadSettings(threshold=0.2)).feed(quiet)
    assert not EnergyVad(RATE_HZ, VadSettings(threshold=0.9)).feed(quiet)
    assert not EnergyVad(RATE_HZ).feed(tone(20) + silence(300))
    assert level_dbfs(b"") == -100.0


def test_create_response_false_commits_only() -> None:
    parrot = Parrot()
    turn_detection(parrot, {"type": "server_vad", "create_response": False})
    assert "response.created" not in types(hear(parrot, tone(500), silence(700)))
    assert "response.done" in types(parrot.handle({"type": "response.create"}))


def test_turn_detection_null_waits_for_the_client() -> None:
    parrot = Parrot()
    turn_detection(parrot, None)
    assert hear(parrot, tone(500), silence(2_000)) == []
    committed = parrot.handle({"type": "input_audio_buffer.commit"})
    assert types(committed)[0] == "input_audio_buffer.committed"
    assert len(spoken(parrot.handle({"type": "response.create"}))) == len(tone(500)) + len(
        silence(2_000)
    )


def test_memory_is_bounded_and_the_end_of_a_long_turn_is_kept() -> None:
    parrot = Parrot()
    events = hear(parrot, *[tone(1_000)] * 40, silence(700))
    assert len(spoken(events)) <= 31 * RATE_HZ * 2
    assert "response.done" in types(events)


def test_second_turn_is_not_shifted_by_the_first() -> None:
    parrot = Parrot()
    hear(parrot, tone(500), silence(700))
    events = hear(parrot, silence(1_000), tone(500), silence(700))
    assert len(spoken(events)) / 2 / RATE_HZ == pytest.approx(0.3 + 0.5 + 0.5, abs=0.06)
    assert (
        level_dbfs(spoken(events)[: RATE_HZ // 5]) == -100.0
    )  # the padding is silence, not the first turn


@pytest.mark.parametrize(
    "event",
    [
        {"type": "x" * 200_000},
        {"type": ["x" * 200_000]},
        {
            "type": "session.update",
            "session": {"audio": {"input": {"turn_detection": {"threshold": "x" * 200_000}}}},
        },
    ],
    ids=range(3),
)
def test_an_error_quotes_little(event: Any) -> None:
    [error] = Parrot().handle(event)
    assert len(error["error"]["message"]) < 300


def test_sound_that_is_not_of_whole_samples_is_refused_and_shifts_nothing() -> None:
    parrot = Parrot()
    append = {"type": "input_audio_buffer.append", "event_id": "odd", "audio": "AAAA"}
    [error] = parrot.handle(append)
    assert (error["type"], error["error"]["event_id"]) == ("error", "odd")
    [empty] = parrot.handle({"type": "input_audio_buffer.commit"})
    assert empty["error"]["code"] == "input_audio_buffer_commit_empty"


def test_item_calls_and_errors_name_their_event() -> None:
    parrot = Parrot()
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "x"}],
        "id": "i1",
    }
    added = parrot.handle({"type": "conversation.item.create", "item": item})
    assert types(added) == ["conversation.item.added", "conversation.item.done"]
    retrieve = {"type": "conversation.item.retrieve", "item_id": "i1"}
    assert types(parrot.handle(retrieve)) == ["conversation.item.retrieved"]
    assert types(parrot.handle({"type": "conversation.item.delete", "item_id": "i1"})) == [
        "conversation.item.deleted"
    ]
    for event in (
        retrieve,
        {"type": "nobody.knows"},
        {"type": "input_audio_buffer.append"},
        {"type": "input_audio_buffer.append", "audio": "###"},
        {"type": "session.update", "session": 5},
        {"type": "session.update", "session": {"audio": None}},
        {"type": "response.cancel"},
        {"type": "input_audio_buffer.commit"},
        {"type": None},
    ):
        [error] = parrot.handle({**event, "event_id": "c1"})
        assert (error["type"], error["error"]["event_id"]) == ("error", "c1")


def test_an_item_whose_id_is_no_text_is_refused_and_holds_no_place() -> None:
    parrot = Parrot()
    text = {"type": "input_text", "text": "x" * 200_000}
    names: list[Any] = [1, 2, 3, 0.5, True, [], {}]
    for name in names:
        item = {"id": name, "type": "message", "role": "user", "content": [text]}
        create = {"type": "conversation.item.create", "event_id": "c1", "item": item}
        [error] = parrot.handle(create)
        assert (error["type"], error["error"]["event_id"]) == ("error", "c1")
        assert error["error"]["code"] == "invalid_value"
        assert "`id`" in error["error"]["message"]
    assert parrot._items.size_bytes == 0


def test_the_oldest_items_make_room_and_the_client_is_told() -> None:
    parrot = Parrot()
    text = {"type": "input_text", "text": "x" * 200_000}
    events = [
        event
        for name in ("i1", "i2", "i3")
        for event in parrot.handle(
            {"type": "conversation.item.create", "item": {"id": name, "content": [text]}}
        )
    ]
    added_and_done = ["conversation.item.added", "conversation.item.done"]
    assert types(events) == [*added_and_done * 2, "conversation.item.deleted", *added_and_done]
    assert events[4]["item_id"] == "i1"


@pytest.mark.parametrize("name", [1, None, ("a", 2)])
def test_the_oldest_event_goes_whatever_its_name_is(name: Any) -> None:
    events = SizedEvents()
    events.put(name, {"type": "x"})
    events.put("second", {"type": "x"})
    assert events.remove_oldest() == name
    assert events.remove_oldest() == "second"
    assert (events.remove_oldest(), events.size_bytes, len(events)) == (None, 0, 0)


@pytest.mark.parametrize("setting", ["threshold", "prefix_padding_ms", "silence_duration_ms"])
def test_a_number_beyond_all_bounds_is_an_error_and_changes_nothing(setting: str) -> None:
    parrot = Parrot()
    before = parrot.session
    value = 10**400 if setting == "threshold" else math.inf
    update = {"audio": {"input": {"turn_detection": {"type": "server_vad", setting: value}}}}
    [error] = parrot.handle({"type": "session.update", "event_id": "c1", "session": update})
    assert (error["type"], error["error"]["code"]) == ("error", "invalid_value")
    assert parrot.session is before


@pytest.mark.parametrize("per_response", [False, True])
def test_a_written_answer_where_text_is_asked_for(per_response: bool) -> None:
    parrot = Parrot()
    create: dict[str, Any] = {"type": "response.create"}
    asked = {"output_modalities": ["text"]}
    if per_response:
        create["response"] = asked
    else:
        parrot.handle({"type": "session.update", "session": asked})
    hear(parrot, tone(200))
    parrot.handle({"type": "input_audio_buffer.commit"})
    events = parrot.handle(create)
    assert types(events)[3:7] == [
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
    ]
    assert not any("audio" in kind for kind in types(events))
    [item] = events[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "text": "(echo of 0.2 s)"}]


def test_an_answer_out_of_band_is_no_item_and_bears_its_metadata() -> None:
    parrot = Parrot()
    response = {"conversation": "none", "metadata": {"topic": "x"}}
    events = parrot.handle({"type": "response.create", "response": response})
    assert not any(kind.startswith("conversation.") for kind in types(events))
    assert [e["response"]["metadata"] for e in events if "response" in e] == [{"topic": "x"}] * 2
    [item] = events[-1]["response"]["output"]
    retrieve = {"type": "conversation.item.retrieve", "item_id": item["id"]}
    assert types(parrot.handle(retrieve)) == ["error"]


@pytest.mark.parametrize("modalities", [5, "text", [], {"text": 1}, ["text", "audio"]])
def test_odd_modalities_are_spoken(modalities: Any) -> None:
    parrot = Parrot()
    parrot.handle({"type": "session.update", "session": {"output_modalities": modalities}})
    assert len(spoken(hear(parrot, tone(400), silence(700)))) > 0


def test_items_are_put_where_they_belong() -> None:
    parrot = Parrot()

    def create(name: str, previous: str | None) -> list[dict[str, Any]]:
        item = {"id": name, "type": "message", "role": "user", "content": []}
        event = {"type": "conversation.item.create", "event_id": "c1", "item": item}
        return parrot.handle({**event, "previous_item_id": previous})

    places = [
        create(name, previous)[0]["previous_item_id"]
        for name, previous in (("b", None), ("d", None), ("a", "root"), ("c", "b"))
    ]
    assert places == [None, "b", None, "b"]
    assert list(parrot._items) == ["a", "b", "c", "d"]
    for name, previous in (("e", "nobody"), ("a", None)):
        [error] = create(name, previous)
        assert (error["type"], error["error"]["event_id"]) == ("error", "c1")
    assert list(parrot._items) == ["a", "b", "c", "d"]
