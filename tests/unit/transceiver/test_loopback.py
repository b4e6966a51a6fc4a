"""The loopback: the events a stock SDK waits for, in its order, and errors for the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from transceiver.backends.loopback import MAX_ITEMS, LoopbackBackend, LoopbackConversation


class Silence:
    """The sound of a call that is passed through: nobody writes to it."""

    def write(self, generation: int, pcm: bytes) -> int:
        """Takes nothing."""
        return 0

    def played_ms(self, generation: int) -> float:
        """Nothing."""
        return 0.0

    def flush(self) -> None:
        """Nothing to stop."""

    def queued_ms(self) -> float:
        """Nothing."""
        return 0.0


class FakeLine:
    """A call that keeps what it is told to send."""

    call_id = "rtc_test"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send_event(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return True

    def end(self, reason: str) -> None:
        raise AssertionError(reason)

    def take(self) -> list[dict[str, Any]]:
        """The events since the last time; all have an id of their own."""
        taken, self.events = self.events, []
        assert len({event["event_id"] for event in taken}) == len(taken)
        return taken


@pytest.fixture
def line() -> FakeLine:
    return FakeLine()


@pytest.fixture
def call(line: FakeLine) -> LoopbackConversation:
    return LoopbackBackend().converse(line, Silence(), {"instructions": "be kind", "id": "mine"})


def say(call: LoopbackConversation, **event: Any) -> None:
    call.on_event(json.dumps(event))


def test_session_created_holds_what_the_client_asked_for(
    line: FakeLine, call: LoopbackConversation
) -> None:
    call.on_open()
    (created,) = line.take()
    assert created["type"] == "session.created"
    session = created["session"]
    assert session["id"].startswith("sess_")
    assert (session["object"], session["type"], session["model"]) == (
        "realtime.session",
        "realtime",
        "loopback",
    )
    assert session["instructions"] == "be kind"


def test_both_updates_of_the_stock_sdk_are_acknowledged(
    line: FakeLine, call: LoopbackConversation
) -> None:
    say(call, type="session.update", session={"type": "realtime", "model": "gpt-realtime-2.1",
                                              "audio": {"output": {"voice": "ash"}}})  # fmt: skip
    say(call, type="session.update", session={"type": "realtime", "tracing": "auto"})
    first, second = line.take()
    assert [first["type"], second["type"]] == ["session.updated", "session.updated"]
    assert second["session"]["audio"] == {"output": {"voice": "ash"}}
    assert second["session"]["tracing"] == "auto"
    assert second["session"]["model"] == "loopback"


def test_response_create_is_released(line: FakeLine, call: LoopbackConversation) -> None:
    say(call, type="response.create")
    created, done = line.take()
    assert (created["type"], done["type"]) == ("response.created", "response.done")
    assert created["response"]["id"] == done["response"]["id"]
    assert done["response"]["status"] == "completed"


def test_interrupting_clears_the_buffer(line: FakeLine, call: LoopbackConversation) -> None:
    say(call, type="output_audio_buffer.clear")
    assert line.take()[0]["type"] == "output_audio_buffer.cleared"


def test_items_are_added_retrieved_and_deleted(line: FakeLine, call: LoopbackConversation) -> None:
    say(call, type="conversation.item.create", item={"type": "message", "id": "a"})
    say(call, type="conversation.item.create", item={"type": "message"})
    say(call, type="conversation.item.retrieve", item_id="a")
    say(call, type="conversation.item.delete", item_id="a")
    say(call, type="conversation.item.delete", item_id="a")
    events = line.take()
    assert [event["type"].removeprefix("conversation.") for event in events] == [
        "item.added", "item.done", "item.added", "item.done", "item.retrieved", "item.deleted",
        "error",
    ]  # fmt: skip
    assert events[2]["previous_item_id"] == "a"


def test_items_are_bounded(line: FakeLine, call: LoopbackConversation) -> None:
    for index in range(2 * MAX_ITEMS):
        say(call, type="conversation.item.create", item={"id": f"i{index}"})
    assert len(call._items) == MAX_ITEMS
    line.take()
    say(call, type="conversation.item.create", item={"text": "x" * 20_000})
    assert line.take()[0]["error"]["code"] == "invalid_event"


def test_the_session_is_bounded(line: FakeLine, call: LoopbackConversation) -> None:
    for index in range(4):
        say(call, type="session.update", session={f"k{index}": "x" * 100_000})
    assert [event["type"] for event in line.take()] == [
        "session.updated", "session.updated", "error", "error",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "message",
    ["", "x", "[]", "1", "null", "{}", '{"type": 1}', b"\x00", "[" * 100_000, "x" * 300_000],
    ids=range(10),
)
def test_what_is_no_event_is_an_error(
    line: FakeLine, call: LoopbackConversation, message: str | bytes
) -> None:
    call.on_event(message)
    assert line.take()[0]["error"]["code"] == "invalid_event"


@pytest.mark.parametrize("event_id", ["mine", 7, None])
def test_an_error_names_the_event_it_answers(
    line: FakeLine, call: LoopbackConversation, event_id: object
) -> None:
    say(call, type="no.such", event_id=event_id)
    error = line.take()[0]["error"]
    assert error["event_id"] == (event_id if isinstance(event_id, str) else None)
    assert error["code"] == "unknown_event"


@pytest.mark.parametrize("kind", ["session.update", "conversation.item.create"])
@pytest.mark.parametrize("value", [None, 1, "x", []])
def test_fields_of_a_wrong_type_are_errors(
    line: FakeLine, call: LoopbackConversation, kind: str, value: object
) -> None:
    say(call, type=kind, session=value, item=value)
    assert line.take()[0]["type"] == "error"


def test_a_pressed_key_is_told(line: FakeLine, call: LoopbackConversation) -> None:
    call.on_digit("#")
    (event,) = line.take()
    assert (event["type"], event["event"]) == ("input_audio_buffer.dtmf_event_received", "#")


def test_what_a_client_secret_fixes_stays(line: FakeLine) -> None:
    call = LoopbackBackend().converse(line, Silence(), {"instructions": "be kind"}, ["tools"])
    mine = {"instructions": "mine", "tools": [1]}
    say(call, type="session.update", event_id="c1", session=mine)
    told, updated = line.take()
    error = told["error"]
    assert (error["code"], error["param"]) == ("session_field_locked", "instructions")
    assert error["event_id"] == "c1"
    assert updated["session"]["instructions"] == "be kind"
    assert updated["session"]["tools"] == [1]


def test_a_session_is_merged(line: FakeLine, call: LoopbackConversation) -> None:
    say(call, type="session.update", session={"audio": {"input": {"turn_detection": None}}})
    say(call, type="session.update", session={"audio": {"output": {"voice": "marin"}}})
    assert line.take()[1]["session"]["audio"] == {
        "input": {"turn_detection": None},
        "output": {"voice": "marin"},
    }


def test_an_event_without_a_type_is_refused_by_its_name(
    line: FakeLine, call: LoopbackConversation
) -> None:
    say(call, event_id="mine")
    assert line.take()[0]["error"]["event_id"] == "mine"
