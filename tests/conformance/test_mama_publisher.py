"""Publisher events: what the specification says beyond OpenMAMA's own tests, over each bridge that is there."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mama_spark.bridge import EventStyle
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.errors import Unavailable
from mama_spark.mama import (
    BridgePublisher,
    MamaMsg,
    Publisher,
    PublisherCallbacks,
    PublisherState,
    Queue,
    Status,
    StatusError,
    Transport,
    TransportEvent,
    TransportTopicEvent,
    string_for_state,
)
from mama_spark.mama.delivery import Delivery
from mama_spark.mama.loop import Sent
from mama_spark.mama.omnm import encode
from mama_spark.mama.states import TABLE
from mama_spark.testing.desks import NatsDesk
from mama_spark.testing.servers import Admin
from mama_spark.testing.stages import (  # noqa: F401
    MemoryStage,
    NatsStage,
    Stage,
    Told,
    a_message,
    dispatch,
    nats_with_users,
    stage,
    until,
)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def memory() -> Any:
    made = MemoryStage(EventStyle.PUBLISHER)
    yield made
    made.close()


def published(stage: Stage, transport: Transport, told: Told, *names: str, queue: Queue | None = None) -> Publisher:  # noqa: F811
    callbacks = told.callbacks(*names) if names else told.callbacks()
    return Publisher.create_with_callbacks(transport, queue, stage.symbol, stage.source, None, callbacks, "mine")


def fails(status: Status, call: Any, *args: Any, match: str | None = None) -> None:
    with pytest.raises(StatusError, match=match) as error:
        call(*args)
    assert error.value.status is status


# --- callbacks ---------------------------------------------------------------------------------------------------


def test_the_callbacks_are_four_by_name_and_unknown_ones_raise() -> None:
    """PE-06..PE-09, PE-12..PE-15"""
    callbacks = PublisherCallbacks()
    callbacks.on_error = lambda publisher, status, info, closure: None
    assert [callbacks.on_create, callbacks.on_destroy, callbacks.on_success] == [None, None, None]
    with pytest.raises(TypeError):
        PublisherCallbacks(on_failure=print)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        PublisherCallbacks(print)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        setattr(callbacks, "on_failure", print)  # noqa: B010
    with pytest.raises(TypeError, match="callable"):
        callbacks.on_create = 7  # type: ignore[assignment]
    callbacks.close()
    assert repr(callbacks) == "<PublisherCallbacks on_error>"


def test_the_callbacks_of_a_publisher_are_a_copy_that_nobody_changes(memory: MemoryStage, told: Told) -> None:
    """PE-25, PE-26: later changes have no effect, and there is no function to set them"""
    callbacks = told.callbacks("create")
    transport = memory.transport()
    publisher = Publisher.create_with_callbacks(transport, None, memory.symbol, memory.source, None, callbacks)
    callbacks.on_destroy = callbacks.on_create
    copy = publisher.get_user_callbacks()
    assert copy is not None
    assert (copy.on_create, copy.on_destroy) == (callbacks.on_create, None)
    with pytest.raises(AttributeError, match="after its create"):
        copy.on_destroy = None
    publisher.destroy()
    assert told.counters == (1, 0, 0, 0)


def test_on_create_runs_on_the_callers_thread_before_create_returns(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-10..PE-12: the publisher is LIVE in it; the closure comes back unchanged"""
    queue = Queue()
    publisher = published(stage, stage.transport(), told, queue=queue)
    assert told.heard == [("create", "LIVE", None, None, threading.current_thread().name)]
    assert told.closures == ["mine"]
    publisher.destroy()
    assert told.heard[1] == ("destroy", "DESTROYING", None, None, threading.current_thread().name)
    assert publisher.state is PublisherState.DESTROYED
    queue.destroy()


def test_only_supplied_callbacks_come(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-41, PE-46"""
    publisher = published(stage, stage.transport(), told, "destroy")
    publisher.send(a_message())
    publisher.destroy()
    assert told.counters == (0, 0, 0, 1)
    until(lambda: len(stage.held()) == 1)


def test_answers_come_on_the_queue_if_there_is_one(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-10: and on the transport's thread if there is none"""
    if not stage.publisher_style:
        stage = MemoryStage(EventStyle.PUBLISHER)
    queue, transport = Queue("answers"), stage.transport()
    direct = published(stage, transport, told)
    direct.send(a_message())
    until(lambda: told.count("success"))
    assert told.heard[-1][4].startswith("mama-transport-")
    publisher = published(stage, transport, told, queue=queue)
    publisher.send(a_message())
    until(queue.get_event_count)
    assert told.count("success") == 1, "nobody dispatches"
    dispatch(queue)
    assert told.heard[-1][4] == threading.current_thread().name
    publisher.send(a_message())
    with queue.start():
        until(lambda: told.count("success") == 3)
    assert told.heard[-1][4] == "mama-queue-answers"
    stage.close()


def test_a_success_tells_where_the_message_is_stored(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-09, PE-36: on_success, as released later; off unless set"""
    publisher = published(stage, stage.transport(), told)
    publisher.send(a_message())
    publisher.destroy()
    if stage.publisher_style:
        name = "T" if isinstance(stage, NatsStage) else stage.symbol
        (success,) = [h for h in told.heard if h[0] == "success"]
        assert success[2] == "OK"
        assert str(success[3]).startswith(f"{name} ")


def test_without_callbacks_nothing_is_kept_or_made_of_an_answer(
    stage: Stage,  # noqa: F811
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PE-20, PE-21: neither the API layer nor the bridge does callback work"""
    transport = stage.transport()
    made: list[object] = []

    def sent(*args: Any) -> Sent:
        made.append(args)
        return Sent(*args)

    monkeypatch.setattr("mama_spark.mama.loop.Sent", sent)
    monkeypatch.setattr(Delivery, "add", lambda *args: made.append(args))
    stage.deny()
    for source in (stage.source, stage.denied):
        publisher = Publisher.create(transport, stage.symbol, source)
        for i in range(5):
            publisher.send(a_message(i))
        assert transport.loop.tracked == 0
        publisher.destroy()
    until(lambda: len(stage.held()) == 5)
    assert made == []
    monkeypatch.undo()
    transport.set_transport_topic_callback(told.on_topic)
    assert transport.loop.tracked == 0


# --- topics ------------------------------------------------------------------------------------------------------


def test_root_source_symbol_and_topic_can_be_asked_for(stage: Stage) -> None:  # noqa: F811
    """PE-22..PE-24: and travel in headers"""
    transport = stage.transport()
    publisher = Publisher.create(transport, stage.symbol, "b", stage.source)
    assert (publisher.root, publisher.source, publisher.symbol) == (stage.source, "b", stage.symbol)
    assert publisher.topic == f"{stage.source}.b.{stage.symbol}"
    plain = Publisher.create(transport, stage.symbol, stage.source)
    assert (plain.root, plain.transport) == (None, transport)
    plain.send(b"bytes go as they are")
    plain.destroy()
    until(lambda: len(stage.held()) == 1)
    (held,) = stage.held()
    assert held.payload == b"bytes go as they are"
    assert held.headers == {"Mama-Source": [stage.source], "Mama-Symbol": [stage.symbol]}


@pytest.mark.parametrize("symbol", ["a b", "a..b", "a.*.b", "a.>", "x" * 200])
def test_a_bad_topic_is_bad_symbol_at_create(stage: Stage, told: Told, symbol: str) -> None:  # noqa: F811
    """PE-31: nothing is returned and nothing is called"""
    queue = Queue()
    fails(
        Status.BAD_SYMBOL, Publisher.create_with_callbacks, stage.transport(), queue, symbol, stage.source, None,
        told.callbacks(),
    )  # fmt: skip
    assert told.heard == []
    queue.destroy()


def test_the_empty_topic_is_legal_at_create_and_bad_symbol_at_send(stage: Stage, told: Told) -> None:  # noqa: F811
    publisher = Publisher.create_with_callbacks(stage.transport(), None, None, None, None, told.callbacks())
    assert (publisher.topic, publisher.state) == ("", PublisherState.LIVE)
    fails(Status.BAD_SYMBOL, publisher.send, a_message())
    publisher.destroy()
    assert told.counters == (1, 0, 0, 1), "a failure that is returned is no callback"


def test_what_fails_at_once_is_returned_and_no_callback_comes(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-31, PE-32"""
    transport = stage.transport()
    publisher = published(stage, transport, told)
    fails(Status.NULL_ARG, publisher.send, None)
    fails(Status.INVALID_ARG, publisher.send, b"x" * (2 << 20))
    fails(Status.INVALID_ARG, publisher.send, "text")
    fails(Status.INVALID_ARG, Publisher.create, None, "S")
    publisher.destroy()
    fails(Status.NULL_ARG, publisher.send, a_message())
    assert told.counters == (1, 0, 0, 1)


def test_a_topic_that_no_stream_takes_is_told_with_the_middlewares_text(
    nats_with_users: Any,  # noqa: F811
    told: Told,
) -> None:
    """PE-15"""
    on = NatsStage(*nats_with_users)
    publisher = Publisher.create_with_callbacks(on.transport(), None, on.symbol, "nowhere", None, told.callbacks())
    fails(Status.PLATFORM, publisher.send, a_message(), match="no stream takes topic")
    on.close()


# --- asynchronous errors -----------------------------------------------------------------------------------------


def test_a_denied_topic_is_not_entitled_and_names_it(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-01..PE-03, PE-05, PE-14, PE-16, PE-17, PE-30: by exactly one of the two ways"""
    stage.deny()
    transport = stage.transport()
    transport.set_transport_topic_callback(told.on_topic, "closure")
    publisher = Publisher.create_with_callbacks(transport, None, stage.symbol, "denied", None, told.callbacks())
    publisher.send(a_message())
    topic = f"denied.{stage.symbol}"
    if stage.publisher_style:
        until(lambda: told.count("error"))
        assert told.heard[1][:3] == ("error", "LIVE", "NOT_ENTITLED")
        assert topic in str(told.heard[1][3]) or topic.lower() in str(told.heard[1][3])
        assert told.topics == []
    else:
        until(lambda: len(told.topics) == 2)
        created, denied = told.topics
        assert created == (TransportTopicEvent.PUBLISH_CREATE, topic, "")
        assert denied[:2] == (TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED, topic)
        assert "no permission" in denied[2]
        assert transport.find_publishers(denied[1]) == [publisher], "PE-03: the publisher is found by its topic"
        publisher.destroy()
        assert told.topics[2:] == [(TransportTopicEvent.PUBLISH_DESTROY, topic, "")]
        assert transport.find_publishers(topic) == []
        assert told.count("error") == 0
    assert transport.callback_errors == 0


@pytest.mark.parametrize("style", list(EventStyle))
@pytest.mark.parametrize(
    ("fault", "status", "event", "info"),
    [
        ("reject", "PLATFORM", "PUBLISH_ERROR", "400: refused by the script"),
        ("503", "PLATFORM", "PUBLISH_ERROR", "503: no responders"),
        ("disconnect", "TIMEOUT", "PUBLISH_ERROR", "the script cut the connection"),
        ("drop", "TIMEOUT", "PUBLISH_ERROR", "no answer within 0.2 s"),
    ],
)
def test_every_other_error_is_publish_error_with_the_middlewares_code_and_text(
    style: EventStyle, told: Told, fault: str, status: str, event: str, info: str
) -> None:
    """PE-15, PE-17"""
    on = MemoryStage(style)
    transport = on.transport(answer_timeout=0.2)
    transport.set_transport_topic_callback(told.on_topic)
    publisher = published(on, transport, told)
    on.broker.then([fault])
    publisher.send(a_message())
    if style is EventStyle.PUBLISHER:
        until(lambda: told.count("error"))
        assert told.heard[1][:4] == ("error", "LIVE", status, info)
    else:
        until(lambda: len(told.topics) == 2)
        assert (told.topics[1][0].name, told.topics[1][2]) == (event, info)
    on.close()


def test_a_late_answer_is_no_second_callback(memory: MemoryStage, told: Told) -> None:
    transport = memory.transport(answer_timeout=0.1)
    publisher = published(memory, transport, told)
    memory.broker.then(["late", "dup", "unknown"])
    for i in range(3):
        publisher.send(a_message(i))
    until(lambda: told.count("error"))
    memory.broker.release()
    publisher.send(a_message())
    until(lambda: told.count("success") == 3)
    assert told.counters[1] == 1


def test_answers_from_before_an_outage_do_not_count_for_what_is_sent_after_it(memory: MemoryStage, told: Told) -> None:
    """A transport that is destroyed waits for what plain publishers sent: also when old answers came late"""
    transport = memory.transport()
    plain = Publisher.create(transport, memory.symbol, memory.source)
    memory.broker.then(["late", "disconnect"])
    plain.send(a_message())
    plain.send(a_message())
    until(lambda: transport.loop._owed_from == 2)
    assert memory.broker.release() == 1
    memory.broker.then(["late"])
    plain.send(a_message())
    assert transport.loop._owed == 1
    memory.broker.release()
    until(lambda: transport.loop._owed == 0)


def test_a_message_without_acknowledgements_is_neither_success_nor_error(told: Told) -> None:
    on = MemoryStage(EventStyle.PUBLISHER)
    queue = Queue(max_events=5000)
    transport = Transport.create("pub", MemoryBridge(on.symbol, acks=False), answer_timeout=0.05)
    publisher = published(on, transport, told, queue=queue)
    for i in range(10):
        publisher.send(a_message(i))
    until(lambda: transport.loop.tracked == 0)
    publisher.destroy()
    transport.destroy()
    assert told.counters == (1, 0, 0, 1)
    assert queue._taken == 0
    on.close()


def test_the_seven_topic_events_have_names() -> None:
    """PE-17: names are compared, because the numbers of the text and of the release collide"""
    assert [e.name for e in TransportTopicEvent] == [
        "SUBSCRIBED", "UNSUBSCRIBED", "PUBLISH_CREATE", "PUBLISH_DESTROY", "PUBLISH_ERROR",
        "PUBLISH_ERROR_NOT_ENTITLED", "PUBLISH_ERROR_BAD_SYMBOL",
    ]  # fmt: skip
    assert all(e.value == e.name for e in TransportTopicEvent)


def test_a_full_queue_is_told_at_the_send_and_loses_nothing(memory: MemoryStage, told: Told) -> None:
    queue = Queue(max_events=3)
    publisher = published(memory, memory.transport(), told, queue=queue)
    for i in range(3):
        publisher.send(a_message(i))
    fails(Status.QUEUE_FULL, publisher.send, a_message())
    until(lambda: queue.get_event_count() == 3)
    dispatch(queue)
    assert told.count("success") == 3
    publisher.send(a_message())
    publisher.destroy()
    assert told.count("success") == 4
    assert len(memory.held()) == 4


def test_sends_wait_for_a_transport_that_takes_nothing_and_give_up_in_time(memory: MemoryStage, told: Told) -> None:
    publisher = published(memory, memory.transport(call_timeout=0.2), told)
    memory.broker.then(["full"])
    publisher.send(a_message(1))
    memory.broker.up = False
    fails(Status.TIMEOUT, publisher.send, a_message(2), match=r"nothing for 0\.2 s")
    memory.broker.up = True
    publisher.send(a_message(3))
    publisher.destroy()
    assert [m.payload for m in memory.held()] == [encode(a_message(1)), encode(a_message(3))]


def test_the_transport_tells_what_happens_to_its_connection(memory: MemoryStage, told: Told) -> None:
    transport, heard = memory.transport(), list[tuple[str, Any]]()
    transport.set_transport_callback(lambda t, event, info, closure: heard.append((event.name, closure)), "mine")
    publisher = published(memory, transport, told)
    memory.broker.then(["disconnect", "ack", "kill"])
    for i in range(3):
        publisher.send(a_message(i))
    until(lambda: len(heard) == 4)
    assert [e for e, _ in heard] == ["DISCONNECT", "RECONNECT", "DISCONNECT", "CONNECT_FAILED"]
    assert {closure for _, closure in heard} == {"mine"}
    fails(Status.PLATFORM, publisher.send, a_message(), match="closed the connection")
    assert TransportEvent.CONNECT.name == "CONNECT"
    until(lambda: told.count("error") == 2)


def test_a_server_that_restarts_is_told_and_publishing_goes_on(tmp_path: Path, told: Told) -> None:
    server = NatsServer(tmp_path / "nats").start()
    with Admin(server.url) as admin:
        admin.create_stream("T", ["t.>"])
        transport, events = Transport.create("pub", server.url, call_timeout=60, destroy_timeout=60), list[str]()
        transport.set_transport_callback(lambda t, event, info, closure: events.append(event.name))
        publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, told.callbacks())
        publisher.send(a_message(1))
        until(lambda: told.count("success") == 1)
        server.stop()
        until(lambda: events == ["DISCONNECT"])
        server.start()
        publisher.send(a_message(2))  # waits until the transport takes it
        publisher.destroy()
        until(lambda: events == ["DISCONNECT", "RECONNECT"])
        assert told.counters == (1, 0, 2, 1)
        assert [m.payload for m in admin.messages("T")] == [encode(a_message(i)) for i in (1, 2)]
        transport.destroy()
    server.stop()


def test_a_live_jetstream_context_is_a_transport(tmp_path: Path, told: Told) -> None:
    desk = NatsDesk.started(tmp_path)
    try:
        with Transport.create("pub", desk.target()) as transport:
            publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, told.callbacks())
            publisher.send(a_message())
            publisher.destroy()
            assert told.counters == (1, 0, 1, 1)
        assert desk.payloads() == [encode(a_message())]
    finally:
        desk.close()


def test_a_fork_is_told_that_the_transport_is_not_its_own() -> None:
    script = (
        "import os\n"
        "from mama_spark.mama import Publisher, StatusError, Transport\n"
        "publisher = Publisher.create(Transport.create('pub', 'memory://forked'), 'x')\n"
        "if not os.fork():\n"
        "    try:\n"
        "        publisher.send(b'O')\n"
        "    except StatusError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "made in another process" in done.stdout


def test_a_transport_that_cannot_connect_says_so() -> None:
    on = MemoryStage(EventStyle.PUBLISHER)
    on.broker.up = False
    with pytest.raises(Unavailable, match="down"):
        Transport.create("pub", on.bridge())
    on.close()


def test_callbacks_of_the_transport_come_on_its_queue_if_it_has_one(told: Told) -> None:
    on, queue = MemoryStage(EventStyle.TRANSPORT), Queue("transport")
    transport = on.transport()
    transport.set_transport_callback_queue(queue)
    transport.set_transport_topic_callback(told.on_topic)
    assert transport.get_transport_callback_queue() is queue
    published(on, transport, told)
    assert told.topics == []
    until(queue.get_event_count)
    dispatch(queue)
    assert [event.name for event, _, _ in told.topics] == ["PUBLISH_CREATE"]
    on.close()


# --- destroying --------------------------------------------------------------------------------------------------


def test_destroy_waits_for_the_answers_and_nothing_comes_after_it(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-13, PE-42"""
    queue = Queue()
    publisher = published(stage, stage.transport(), told, queue=queue)
    for i in range(50):
        publisher.send(a_message(i))
    publisher.destroy()
    expected = (1, 0, 50 if stage.publisher_style else 0, 1)
    assert told.counters == expected
    assert told.heard[-1][0] == "destroy"
    publisher.destroy()
    queue.timed_dispatch(0.02)
    assert told.counters == expected, "destroy may be repeated, and is done once"
    queue.destroy()


def test_a_publisher_whose_answers_do_not_come_is_destroyed_at_the_deadline(memory: MemoryStage, told: Told) -> None:
    """PE-53, PE-55: it waits for the bridge as DESTROYING_WAIT_BRIDGE, and is DESTROYED when the bridge is done"""
    transport = memory.transport(destroy_timeout=0.1, answer_timeout=60)
    publisher = published(memory, transport, told)
    memory.broker.then(["late"])
    publisher.send(a_message())
    publisher.destroy()
    assert told.heard[-1][:2] == ("destroy", "DESTROYING")
    assert publisher.state.name == "DESTROYING_WAIT_BRIDGE"
    memory.broker.release()
    until(lambda: publisher.state.name == "DESTROYED")
    assert told.counters == (1, 0, 0, 1), "the answer came too late"


@pytest.mark.parametrize("queued", [True, False])
def test_a_callback_that_hangs_does_not_keep_destroy(memory: MemoryStage, told: Told, queued: bool) -> None:
    go, inside = threading.Event(), threading.Event()
    callbacks = told.callbacks("destroy")

    def hang(*_: Any) -> None:
        inside.set()
        go.wait(60)

    callbacks.on_success = hang
    queue = Queue() if queued else None
    dispatcher = queue.start() if queue is not None else None
    transport = memory.transport(destroy_timeout=0.1)
    publisher = Publisher.create_with_callbacks(transport, queue, memory.symbol, memory.source, None, callbacks)
    publisher.send(a_message())
    assert inside.wait(60)
    publisher.destroy()
    assert [h[:2] for h in told.heard] == [("destroy", "DESTROYING")]
    go.set()
    until(lambda: publisher.state.name == "DESTROYED")
    if dispatcher is not None:
        dispatcher.destroy()


def test_what_waits_for_the_bridge_is_destroyed_with_the_transport(memory: MemoryStage, told: Told) -> None:
    transport = memory.transport(destroy_timeout=0.05)
    publisher = published(memory, transport, told)
    memory.broker.then(["lose"])
    publisher.send(a_message())
    transport.destroy()
    assert publisher.state is PublisherState.DESTROYED
    assert told.counters == (1, 0, 0, 1)


def test_a_transport_destroys_the_publishers_that_live_on_it(stage: Stage, told: Told) -> None:  # noqa: F811
    transport = stage.transport()
    publishers = [published(stage, transport, told) for _ in range(3)]
    publishers[0].send(a_message())
    transport.destroy()
    assert {p.state for p in publishers} == {PublisherState.DESTROYED}
    assert told.counters == (3, 0, 1 if stage.publisher_style else 0, 3)
    fails(Status.NULL_ARG, publishers[0].send, a_message())
    fails(Status.INVALID_ARG, Publisher.create, transport, stage.symbol)
    transport.destroy()


def test_destroy_ex_returns_at_once_and_destroys_on_the_queue(memory: MemoryStage, told: Told) -> None:
    queue = Queue("ex")
    publisher = published(memory, memory.transport(), told, queue=queue)
    publisher.send(a_message())
    publisher.destroy_ex()
    assert publisher.state.name == "LIVE"
    with queue.start():
        until(lambda: publisher.state.name == "DESTROYED")
    assert [(h[0], h[4]) for h in told.heard[1:]] == [("success", "mama-queue-ex"), ("destroy", "mama-queue-ex")]
    inline = published(memory, memory.transport(), told)
    inline.destroy_ex()
    assert inline.state is PublisherState.DESTROYED


def test_a_queue_is_not_destroyed_before_the_publishers_that_use_it(memory: MemoryStage, told: Told) -> None:
    queue = Queue()
    publisher = published(memory, memory.transport(), told, queue=queue)
    fails(Status.QUEUE_OPEN_OBJECTS, queue.destroy)
    publisher.destroy()
    queue.destroy()
    with pytest.raises(StatusError, match="QUEUE_END"):
        published(memory, memory.transport(), told, queue=queue)
    assert told.count("create") == 1


def test_what_plain_publishers_sent_is_stored_when_the_transport_is_destroyed(stage: Stage) -> None:  # noqa: F811
    """PE-19: a process may end next"""
    with stage.transport() as transport:
        publisher = Publisher.create(transport, stage.symbol, stage.source)
        for i in range(100):
            publisher.send(a_message(i))
    assert [m.payload for m in stage.held()] == [encode(a_message(i)) for i in range(100)]


# --- threads and races -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["queue", "transport's thread"])
@pytest.mark.parametrize("when", ["success", "error", "create"])
def test_a_callback_may_destroy_its_own_publisher(memory: MemoryStage, told: Told, where: str, when: str) -> None:
    queue = Queue() if where == "queue" else None
    callbacks = told.callbacks()
    inner = getattr(callbacks, f"on_{when}")

    def destroying(publisher: Publisher, *args: Any) -> None:
        inner(publisher, *args)
        publisher.destroy()

    setattr(callbacks, f"on_{when}", destroying)
    transport = memory.transport()
    if when == "error":
        memory.broker.then(["reject"] * 20)
    publisher = Publisher.create_with_callbacks(transport, queue, memory.symbol, memory.source, None, callbacks)
    if when != "create":
        memory_sends(publisher, 20)

    def destroyed() -> bool:
        if queue is not None:
            dispatch(queue)
        return publisher.state is PublisherState.DESTROYED

    until(destroyed)
    assert told.count("destroy") == 1
    assert told.heard[-1][:2] == ("destroy", "DESTROYING")
    if when != "create":
        assert told.count(when) == 1, "what was still due is not told"
    if queue is not None:
        queue.timed_dispatch(0.01)
        queue.destroy()
    assert told.count("destroy") == 1


def memory_sends(publisher: Publisher, n: int) -> None:
    for i in range(n):
        try:
            publisher.send(a_message(i))
        except StatusError:  # destroyed: the only one that there is here
            return


@pytest.mark.parametrize("name", ["create", "success", "destroy"])
@pytest.mark.parametrize("queued", [True, False])
def test_callbacks_may_send_by_their_own_and_by_other_publishers(
    stage: Stage,  # noqa: F811
    told: Told,
    name: str,
    queued: bool,
) -> None:
    """No callback keeps the transport's thread, which its own sends need, from going on."""
    transport, queue = stage.transport(), Queue() if queued else None
    other = published(stage, transport, Told())
    callbacks, sent = told.callbacks(), list[int]()
    inner = getattr(callbacks, f"on_{name}")

    def sending(publisher: Publisher, *args: Any) -> None:
        inner(publisher, *args)
        for by in (other, other, *([publisher] * 5 if name == "create" else [])):
            by.send(a_message())
            sent.append(1)

    setattr(callbacks, f"on_{name}", sending)
    dispatcher = queue.start() if queue is not None else None
    publisher = Publisher.create_with_callbacks(transport, queue, stage.symbol, stage.source, None, callbacks)
    publisher.send(a_message())
    publisher.destroy()
    n = len(sent)
    assert n == {"create": 7, "success": 2 if stage.publisher_style else 0, "destroy": 2}[name]
    assert told.count("success") == (0 if not stage.publisher_style else 6 if name == "create" else 1)
    assert told.heard[-1][0] == "destroy"
    other.destroy()
    assert len(stage.held()) == n + 1
    if dispatcher is not None:
        dispatcher.destroy()


@pytest.mark.parametrize("name", ["create", "error", "success", "destroy"])
def test_a_raising_callback_is_counted_and_harms_nobody(
    memory: MemoryStage, told: Told, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(*args: Any) -> None:
        raise RuntimeError(f"on_{name} raises")

    callbacks = told.callbacks()
    setattr(callbacks, f"on_{name}", raising)
    memory.broker.then(["reject", "ack"])
    transport = memory.transport()
    publisher = Publisher.create_with_callbacks(transport, None, memory.symbol, memory.source, None, callbacks)
    for i in range(2):
        publisher.send(a_message(i))
    publisher.destroy()
    assert publisher.state is PublisherState.DESTROYED
    assert publisher.callback_errors == 1
    assert f"on_{name} raises" in caplog.text
    assert sum(told.counters) == 3


def test_a_raising_topic_callback_is_counted(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    on = MemoryStage(EventStyle.TRANSPORT)
    transport = on.transport()
    transport.set_transport_topic_callback(lambda *args: [][0])
    published(on, transport, told)
    assert transport.callback_errors == 1
    assert "IndexError" in caplog.text
    on.close()


@pytest.mark.parametrize("queued", [True, False])
def test_destroy_while_sends_are_answered(stage: Stage, told: Told, queued: bool) -> None:  # noqa: F811
    """PE-42: whoever sends, answers and destroys at the same time, on_destroy comes once and last"""
    queue = Queue("race") if queued else None
    dispatcher = queue.start() if queue is not None else None
    transport = stage.transport()
    for _ in range(8):
        told.heard.clear()
        publisher = published(stage, transport, told, queue=queue)
        senders = [threading.Thread(target=memory_sends, args=(publisher, 40)) for _ in range(2)]
        enders = [threading.Thread(target=publisher.destroy) for _ in range(2)]
        for thread in [*senders, *enders]:
            thread.start()
        for thread in [*senders, *enders]:
            thread.join()
        until(lambda p=publisher: p.state is PublisherState.DESTROYED)  # type: ignore[misc]
        assert told.count("destroy") == 1
        assert told.heard[-1][0] == "destroy"
        assert told.heard[0][0] == "create"
    if queue is not None and dispatcher is not None:
        dispatcher.destroy()
        queue.destroy()
        assert queue._taken == 0, "no place is lost"


def test_a_transport_may_be_destroyed_from_a_callback_and_while_others_send(memory: MemoryStage, told: Told) -> None:
    transport = memory.transport()
    callbacks = told.callbacks()
    callbacks.on_success = lambda publisher, *_: publisher.transport.destroy()
    publisher = Publisher.create_with_callbacks(transport, None, memory.symbol, memory.source, None, callbacks)
    other = published(memory, transport, told)
    threads = [threading.Thread(target=memory_sends, args=(p, 50)) for p in (publisher, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transport.destroy()
    until(lambda: {publisher.state, other.state} == {PublisherState.DESTROYED})
    assert told.count("destroy") == 2


def test_a_bridge_that_dies_fails_the_calls_and_lets_publishers_be_destroyed(
    memory: MemoryStage, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = memory.transport()
    publisher = published(memory, transport, told)
    memory.broker.then(["late"])
    publisher.send(a_message())

    def broken(*args: Any, **more: Any) -> None:
        raise RuntimeError("the bridge broke")

    monkeypatch.setattr(MemoryBridge, "poll", broken)
    until(lambda: told.count("error"))
    fails(Status.PLATFORM, publisher.send, a_message(), match="the bridge broke")
    publisher.destroy()
    assert told.counters == (1, 1, 0, 1)
    assert publisher.state is PublisherState.DESTROYED
    assert "the bridge broke" in caplog.text


# --- states ------------------------------------------------------------------------------------------------------


def test_the_seven_states_have_their_order_and_names() -> None:
    """PE-33..PE-35, PE-48..PE-54"""
    names = ["UNKNOWN", "CREATING", "LIVE", "DESTROYING", "DESTROYED_BRIDGE", "DESTROYING_WAIT_BRIDGE", "DESTROYED"]
    assert [state.name for state in PublisherState] == names
    assert [string_for_state(i) for i in range(7)] == names
    assert Publisher.string_for_state(99) == "State not recognised"


class Life(RuleBasedStateMachine):
    """One publisher over the memory bridge against what the specification says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.on = MemoryStage(EventStyle.PUBLISHER)
        self.told = Told()
        self.transport = self.on.transport(destroy_timeout=0.02, answer_timeout=60)
        self.publisher = published(self.on, self.transport, self.told)
        self.sent = self.late = 0
        self.destroyed = False

    @precondition(lambda self: not self.destroyed)
    @rule(fault=st.sampled_from(["ack", "reject", "503", "late", "dup"]))
    def send(self, fault: str) -> None:
        self.on.broker.then([fault])
        self.publisher.send(a_message())
        if fault == "late":
            self.late += 1
        else:
            self.sent += 1
            until(lambda: self.answers == self.sent)

    @rule()
    def release(self) -> None:
        self.on.broker.release()
        if not self.destroyed:
            self.sent, self.late = self.sent + self.late, 0
            until(lambda: self.answers == self.sent)
        self.late = 0

    @rule(how=st.sampled_from(["destroy", "destroy_ex", "transport"]))
    def destroy(self, how: str) -> None:
        {"destroy": self.publisher.destroy, "destroy_ex": self.publisher.destroy_ex,
         "transport": self.transport.destroy}[how]()  # fmt: skip
        if how == "transport":
            self.late = 0
        self.destroyed = True

    @precondition(lambda self: self.destroyed)
    @rule()
    def use_it_nevertheless(self) -> None:
        fails(Status.NULL_ARG, self.publisher.send, a_message())

    @property
    def answers(self) -> int:
        return self.told.count("error") + self.told.count("success")

    @invariant()
    def the_state_is_the_models(self) -> None:
        if not self.destroyed:
            assert self.publisher.state is PublisherState.LIVE, "errors change no state"
        elif self.late:
            assert self.publisher.state is PublisherState.DESTROYING_WAIT_BRIDGE
        else:
            until(lambda: self.publisher.state is PublisherState.DESTROYED)

    @invariant()
    def the_callbacks_are_the_models(self) -> None:
        assert self.told.count("create") == 1
        assert self.told.count("destroy") == self.destroyed
        assert self.answers == self.sent
        assert {h[1] for h in self.told.heard if h[0] == "destroy"} <= {"DESTROYING"}
        assert {h[1] for h in self.told.heard if h[0] in ("error", "success")} <= {"LIVE"}
        if self.destroyed:
            assert self.told.heard[-1][0] == "destroy"

    def teardown(self) -> None:
        self.on.close()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["ack", "reject", "lose", "429"]), max_size=12), st.booleans())
def test_every_send_has_one_callback_or_none_whatever_happens(faults: list[str], queued: bool) -> None:
    """PE-43"""
    on, told = MemoryStage(EventStyle.PUBLISHER), Told()
    queue = Queue() if queued else None
    transport = on.transport(destroy_timeout=0.01)
    publisher = published(on, transport, told, queue=queue)
    on.broker.then(faults)
    for i in range(len(faults)):
        publisher.send(a_message(i))
    if "lose" in faults:
        answered = sum(f != "lose" for f in faults)
        until(lambda: told.count("error") + told.count("success") + (queue.get_event_count() if queue else 0)
              == answered)  # fmt: skip
    else:
        transport.destroy_timeout = 60
    publisher.destroy()
    assert told.counters == (1, sum(f in ("reject", "429") for f in faults), faults.count("ack"), 1)
    on.close()


def test_the_path_of_a_publisher_is_in_the_table() -> None:
    """PE-56: the two legal paths"""
    for path in ("CREATING LIVE DESTROYING DESTROYED_BRIDGE DESTROYED",
                 "CREATING LIVE DESTROYING DESTROYING_WAIT_BRIDGE DESTROYED"):  # fmt: skip
        states = [PublisherState[name] for name in path.split()]
        assert all(after in TABLE[before].values() for before, after in pairwise(states))


def test_the_url_of_a_broker_is_a_bridge(nats_with_users: Any, told: Told) -> None:  # noqa: F811
    server, _ = nats_with_users
    MemoryBroker.get("by-url")
    transport = Transport.create("pub", "memory://by-url")
    Publisher.create(transport, "S", "t").send(MamaMsg())
    transport.destroy()
    assert [m.topic for m in MemoryBroker.get("by-url").messages()] == ["t.S"]
    MemoryBroker.forget("by-url")
    url = server.url.replace("nats://", "nats://a:p@")
    transport = Transport.create("pub", url)
    publisher = Publisher.create_with_callbacks(transport, None, "url", "t", None, told.callbacks())
    publisher.send(a_message())
    publisher.destroy()
    transport.destroy()
    assert told.counters == (1, 0, 1, 1)
    assert isinstance(transport.loop.bridge, NatsBridge)
    assert NatsSettings().servers == ("nats://127.0.0.1:4222",)


# --- the bridge's side -------------------------------------------------------------------------------------------


def test_the_bridge_makes_the_callbacks_that_it_was_given_after_create(stage: Stage, told: Told) -> None:  # noqa: F811
    """PE-44, PE-45, PE-46, PE-47: every bridge has the hook, because it is ours and not the bridge's"""
    transport = stage.transport()
    parent = Publisher.create(transport, stage.symbol, stage.source)
    made = BridgePublisher.create(transport, stage.symbol, stage.source, None, parent)
    made.send(encode(a_message()))  # before there are callbacks: nobody is told
    made.set_user_callbacks(None, told.callbacks("success"), "mine")
    made.send(encode(a_message()))
    assert made.destroy(60)
    assert told.counters == (0, 0, 1 if stage.publisher_style else 0, 0), "on_create is never the bridge's to call"
    assert set(told.closures) <= {"mine"}


def test_callbacks_are_of_one_publisher_although_others_share_its_topic(stage: Stage) -> None:  # noqa: F811
    """PE-04, PE-29"""
    transport, ears = stage.transport(), [Told(), Told()]
    publishers = [published(stage, transport, ear) for ear in ears]
    assert set(transport.find_publishers(stage.topic)) == set(publishers)
    for n, publisher in enumerate(publishers):
        for i in range(n + 2):
            publisher.send(a_message(i))
    for publisher in publishers:
        publisher.destroy()
    assert [ear.count("success") for ear in ears] == ([2, 3] if stage.publisher_style else [0, 0])
