"""The echo: the events a stock SDK waits for, in its order, and errors for the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from transceiver.backends.base import AudioFrame
from transceiver.backends.echo import MAX_ITEMS, EchoBackend, EchoConversation
from transceiver.offer import Codec


class FakeLine:
    """A call that keeps what it is told to send."""

    call_id = "rtc_test"
    codec = Codec("opus", 111, 48_000)

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.frames: list[AudioFrame] = []

    def send_event(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return True

    def send_audio(self, frame: AudioFrame) -> None:
        self.frames.append(frame)

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
def echo(line: FakeLine) -> EchoConversation:
    return EchoBackend().converse(line, {"instructions": "be kind", "id": "mine"})


def say(echo: EchoConversation, **event: Any) -> None:
    echo.on_event(json.dumps(event))


def test_session_created_holds_what_the_client_asked_for(
    line: FakeLine, echo: EchoConversation
) -> None:
    echo.on_open()
    (created,) = line.take()
    assert created["type"] == "session.created"
    session = created["session"]
    assert session["id"].startswith("sess_")
    assert (session["object"], session["type"], session["model"]) == (
        "realtime.session",
        "realtime",
        "echo",
    )
    assert session["instructions"] == "be kind"


def test_both_updates_of_the_stock_sdk_are_acknowledged(
    line: FakeLine, echo: EchoConversation
) -> None:
    say(echo, type="session.update", session={"type": "realtime", "model": "gpt-realtime-2.1",
                                              "audio": {"output": {"voice": "ash"}}})  # fmt: skip
    say(echo, type="session.update", session={"type": "realtime", "tracing": "auto"})
    first, second = line.take()
    assert [first["type"], second["type"]] == ["session.updated", "session.updated"]
    assert second["session"]["audio"] == {"output": {"voice": "ash"}}
    assert second["session"]["tracing"] == "auto"
    assert second["session"]["model"] == "echo"


def test_response_create_is_released(line: FakeLine, echo: EchoConversation) -> None:
    say(echo, type="response.create")
    created, done = line.take()
    assert (created["type"], done["type"]) == ("response.created", "response.done")
    assert created["response"]["id"] == done["response"]["id"]
    assert done["response"]["status"] == "completed"


def test_interrupting_clears_the_buffer(line: FakeLine, echo: EchoConversation) -> None:
    say(echo, type="output_audio_buffer.clear")
    assert line.take()[0]["type"] == "output_audio_buffer.cleared"


def test_items_are_added_retrieved_and_deleted(line: FakeLine, echo: EchoConversation) -> None:
    say(echo, type="conversation.item.create", item={"type": "message", "id": "a"})
    say(echo, type="conversation.item.create", item={"type": "message"})
    say(echo, type="conversation.item.retrieve", item_id="a")
    say(echo, type="conversation.item.delete", item_id="a")
    say(echo, type="conversation.item.delete", item_id="a")
    events = line.take()
    assert [event["type"].removeprefix("conversation.") for event in events] == [
        "item.added", "item.done", "item.added", "item.done", "item.retrieved", "item.deleted",
        "error",
    ]  # fmt: skip
    assert events[2]["previous_item_id"] == "a"


def test_items_are_bounded(line: FakeLine, echo: EchoConversation) -> None:
    for index in range(2 * MAX_ITEMS):
        say(echo, type="conversation.item.create", item={"id": f"i{index}"})
    assert len(echo._items) == MAX_ITEMS
    line.take()
    say(echo, type="conversation.item.create", item={"text": "x" * 20_000})
    assert line.take()[0]["error"]["code"] == "invalid_event"


def test_the_session_is_bounded(line: FakeLine, echo: EchoConversation) -> None:
    for index in range(4):
        say(echo, type="session.update", session={f"k{index}": "x" * 100_000})
    assert [event["type"] for event in line.take()] == [
        "session.updated", "session.updated", "error", "error",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "message",
    ["", "x", "[]", "1", "null", "{}", '{"type": 1}', b"\x00", "[" * 100_000, "x" * 300_000],
    ids=range(10),
)
def test_what_is_no_event_is_an_error(
    line: FakeLine, echo: EchoConversation, message: str | bytes
) -> None:
    echo.on_event(message)
    assert line.take()[0]["error"]["code"] == "invalid_event"


@pytest.mark.parametrize("event_id", ["mine", 7, None])
def test_an_error_names_the_event_it_answers(
    line: FakeLine, echo: EchoConversation, event_id: object
) -> None:
    say(echo, type="no.such", event_id=event_id)
    error = line.take()[0]["error"]
    assert error["event_id"] == (event_id if isinstance(event_id, str) else None)
    assert error["code"] == "unknown_event"


@pytest.mark.parametrize("kind", ["session.update", "conversation.item.create"])
@pytest.mark.parametrize("value", [None, 1, "x", []])
def test_fields_of_a_wrong_type_are_errors(
    line: FakeLine, echo: EchoConversation, kind: str, value: object
) -> None:
    say(echo, type=kind, session=value, item=value)
    assert line.take()[0]["type"] == "error"


def test_c14_frames_come_back_as_they_are(line: FakeLine, echo: EchoConversation) -> None:
    frames = [AudioFrame(payload, 1, 2, True, 3) for payload in (b"\0", b"x" * 1_276, b"opus")]
    for frame in frames:
        echo.on_audio(frame)
    assert line.frames == frames
