"""Requests and replies: only the inbox's callbacks hear of them; over the memory bridge and NATS."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from mama_spark.mama import (
    DQPublisher,
    Inbox,
    MamaMsg,
    MsgType,
    Publisher,
    Queue,
    Request,
    RequestListener,
    Status,
    StatusError,
    Transport,
)
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    MemoryMamaHarness,
    NatsMamaHarness,
    a_message,
    dispatch,
    fails,
)
from tests.support.nats.nats_servers import Admin

#: No stream takes these topics, and requests are no business of streams.
ASKED = "ask"


class Answers:
    """What comes to an inbox."""

    def __init__(self) -> None:
        self.msgs: list[tuple[int, str]] = []
        self.errors: list[tuple[str, str]] = []
        self.destroyed: list[Any] = []

    def inbox(self, transport: Any, queue: Queue | None = None) -> Inbox:
        return Inbox.create(transport, queue, self.on_msg, self.on_error, self.on_destroy, "mine")

    def on_msg(self, msg: MamaMsg, closure: Any) -> None:
        assert closure == "mine"
        self.msgs.append((msg.get("Number"), threading.current_thread().name))

    def on_error(self, status: Status, info: str, closure: Any) -> None:
        self.errors.append((status.name, info))

    def on_destroy(self, inbox: Inbox, closure: Any) -> None:
        self.destroyed.append(closure)


@pytest.mark.spec("PE-27", "PE-28", "PE-30")
def test_a_request_is_answered_to_the_inbox_and_to_no_publisher_callback(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    asking, answering, answers = harness.transport(), harness.transport(), Answers()
    replies = Publisher.create_with_callbacks(answering, None, "replies", "ask", None, recorder.callbacks())

    def answer(request: Request, closure: Any) -> None:
        assert closure == "server"
        assert request.topic == f"{ASKED}.{harness.symbol}"
        for i in range(2):
            replies.send_reply_to_inbox(request, a_message(request.msg.get("Number") + 1 + i))

    listener = RequestListener.create(answering, None, f"{ASKED}.{harness.symbol}", answer, "server")
    publisher = Publisher.create_with_callbacks(asking, None, harness.symbol, ASKED, None, recorder.callbacks())
    inbox = answers.inbox(asking)
    publisher.send_from_inbox(inbox, a_message(41))
    until(lambda: len(answers.msgs) == 2)
    assert [number for number, _ in answers.msgs] == [42, 43]
    assert answers.msgs[0][1].startswith("mama-transport-")
    inbox.destroy()
    inbox.destroy()
    assert answers.destroyed == ["mine"]
    with pytest.raises(StatusError, match="NULL_ARG"):
        publisher.send_from_inbox(inbox, a_message())
    listener.destroy()
    listener.destroy()
    publisher.destroy()
    replies.destroy()
    assert recorder.counters == (2, 0, 0, 2)
    assert answers.errors == []


def test_a_reply_of_a_numbering_publisher_carries_the_number_as_it_is(harness: MamaHarness) -> None:
    asking, answering, replies = harness.transport(), harness.transport(), list[MamaMsg]()
    dq = DQPublisher.create(answering, harness.symbol, harness.source)

    def answer(request: Request, _: Any) -> None:
        reply = a_message()
        reply.add(FieldType.U8, "MdMsgType", 1, (MsgType.UPDATE, MsgType.REFRESH, MsgType.UPDATE)[len(replies)])
        dq.send_reply(request, reply)

    RequestListener.create(answering, None, f"{ASKED}.{harness.symbol}", answer)
    publisher = Publisher.create(asking, harness.symbol, ASKED)
    inbox = Inbox.create(asking, None, lambda msg, _: replies.append(msg))

    for before in range(3):
        if before == 2:
            dq.set_seq_num(0)
        publisher.send_from_inbox(inbox, a_message())
        until(lambda n=before: len(replies) > n)  # type: ignore[misc]
    stamps = [tuple(msg.get(name) for name in ("MdSeqNum", "MdMsgStatus", "MamaSenderId")) for msg in replies]
    assert stamps == [(1, 0, dq.sender_id), (1, 0, dq.sender_id), (None, None, dq.sender_id)], "whatever its type"


def test_answers_come_on_the_queue_of_the_inbox(harness: MamaHarness) -> None:
    transport, queue, answers = harness.transport(), Queue("inbox"), Answers()
    requests: list[Request] = []
    RequestListener.create(transport, queue, f"{ASKED}.{harness.symbol}", lambda request, _: requests.append(request))
    publisher = Publisher.create(transport, harness.symbol, ASKED)
    publisher.send_from_inbox(answers.inbox(transport, queue), a_message(1))
    while not requests:
        queue.dispatch(0.02)
    publisher.send_reply_to_inbox(requests[0], a_message(2))
    until(queue.get_event_count)
    assert answers.msgs == []
    dispatch(queue)
    assert answers.msgs == [(2, threading.current_thread().name)]
    transport.destroy()
    assert answers.destroyed == ["mine"]
    queue.destroy()


def test_nobody_there_and_an_unreadable_answer_are_errors_of_the_inbox(harness: MamaHarness) -> None:
    transport, answers = harness.transport(), Answers()
    publisher = Publisher.create(transport, harness.symbol, ASKED)
    inbox = answers.inbox(transport)
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: answers.errors)
    assert answers.errors[0][0] == "PLATFORM"
    assert answers.errors[0][1].startswith("503: ")
    RequestListener.create(
        transport, None, publisher.topic, lambda request, _: publisher.send_reply_to_inbox(request, b"\xff")
    )
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: len(answers.errors) == 2)
    assert "unreadable answer" in answers.errors[1][1]


def test_each_of_many_denied_requests_is_told_to_its_inbox_and_a_denied_message_to_its_publisher(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    """Also where the next ones are on their way, there and elsewhere, before the first denial is heard."""
    harness.deny()
    transport, answers = harness.transport(), [Answers(), Answers()]
    inboxes = [one.inbox(transport) for one in answers]
    denied, nobody = (Publisher.create(transport, harness.symbol, source) for source in (harness.denied, ASKED))
    denied.send_from_inbox(inboxes[0], a_message())
    until(lambda: answers[0].errors)
    if isinstance(harness, NatsMamaHarness):
        harness.server.pause()
    for i in range(20):
        denied.send_from_inbox(inboxes[i % 2], a_message())
        nobody.send_from_inbox(inboxes[i % 2], a_message())
    if isinstance(harness, NatsMamaHarness):
        harness.server.resume()
    until(lambda: sum(len(one.errors) for one in answers) == 41)
    assert [sorted(status for status, _ in one.errors) for one in answers] == [
        n * ["NOT_ENTITLED"] + 10 * ["PLATFORM"] for n in (11, 10)
    ]
    publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, "denied", None, recorder.callbacks())
    publisher.send(a_message())
    publisher.destroy()
    assert recorder.counters == (1, 1 if harness.publisher_style else 0, 0, 1)


def test_where_nobody_may_listen_that_is_said_and_the_transport_goes_on(nats_with_users: Any) -> None:
    on = NatsMamaHarness(*nats_with_users)
    transport = on.transport()
    with pytest.raises(StatusError, match="no permission to subscribe"):
        RequestListener.create(transport, None, "private.x", lambda *_: None)
    Publisher.create(transport, on.symbol, on.source).send(a_message())
    on.close()
    assert len(on.held()) == 1


def test_what_is_no_request_or_no_listener_is_refused(harness: MamaHarness) -> None:
    transport = harness.transport()
    publisher = Publisher.create(transport, harness.symbol, ASKED)
    fails(Status.INVALID_ARG, publisher.send_reply_to_inbox, None, a_message())
    fails(Status.INVALID_ARG, publisher.send_reply_to_inbox, Request(a_message(), "t", None), a_message())
    fails(Status.NULL_ARG, publisher.send_from_inbox, None, a_message())
    fails(Status.NULL_ARG, Inbox.create, None, None, lambda *_: None)
    fails(Status.BAD_SYMBOL, RequestListener.create, transport, None, "a b", lambda *_: None)
    RequestListener.create(transport, None, "ask.twice", lambda *_: None)
    with pytest.raises(StatusError, match=r"listens to .ask\.twice. already"):
        RequestListener.create(transport, None, "ask.twice", lambda *_: None)


def test_everything_is_destroyed_in_time_although_the_server_is_gone(
    tmp_path: Path, recorder: CallbackRecorder
) -> None:
    answers = Answers()
    server = NatsServer(tmp_path / "nats").start()
    with Admin(server.url) as admin:
        admin.create_stream("T", ["t.>"])
    transport = Transport.create("pub", server.url, destroy_timeout=1.0)
    listener = RequestListener.create(transport, None, "ask.x", lambda *_: None)
    inbox = answers.inbox(transport)
    publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, recorder.callbacks())
    publisher.send(a_message())
    until(lambda: recorder.count("success"))
    asking, events = Publisher.create(transport, "x", "ask"), list[str]()
    asking.send_from_inbox(inbox, a_message())
    transport.set_transport_callback(lambda t, event, info, closure: events.append(event.name))
    server.stop()
    until(lambda: events == ["DISCONNECT"])
    with pytest.raises(StatusError, match="not connected"):
        asking.send_from_inbox(inbox, a_message())
    transport.destroy()
    assert recorder.counters == (1, 0, 1, 1)
    assert answers.destroyed == ["mine"]
    assert "destroyed" in repr(listener)


def test_a_bridge_without_inboxes_says_not_implemented(
    memory: MemoryMamaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = memory.transport()
    monkeypatch.delattr("mama_spark.memory.MemoryBridge.requests")
    with pytest.raises(StatusError, match="NOT_IMPLEMENTED"):
        Inbox.create(transport, None, lambda *_: None)


def test_a_full_queue_drops_an_answer_with_a_warning(
    memory: MemoryMamaHarness, caplog: pytest.LogCaptureFixture
) -> None:
    answers, queue = Answers(), Queue(max_events=1)
    transport = memory.transport()
    publisher = Publisher.create(transport, memory.symbol, ASKED)
    inbox = answers.inbox(transport, queue)
    for _ in range(3):
        publisher.send_from_inbox(inbox, a_message())
    until(lambda: inbox.dropped == 2)
    assert "is dropped: QUEUE_FULL" in caplog.text
