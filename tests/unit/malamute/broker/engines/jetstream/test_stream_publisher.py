"""What the engine over JetStream publishes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import (
    Ack,
    Acks,
    BridgeEvent,
    EventKind,
    OnTheWay,
    PollResult,
    PublisherBridge,
    Refusals,
    ValidationResult,
)
from mama_spark.contracts.errors import ConfigError, NotReady, PermissionDenied, PublishError
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.malamute.broker.engines.jetstream import publisher
from mama_spark.malamute.broker.engines.jetstream.engine import JetStreamEngine
from mama_spark.malamute.broker.engines.jetstream.message_codec import decode
from mama_spark.malamute.broker.engines.jetstream.publisher import PendingPublish, StreamPublisher
from mama_spark.malamute.broker.engines.jetstream.stored_log import StoredLog
from mama_spark.malamute.protocol.extensions import StoreOutcome
from mama_spark.testing.waiting import until

from tests.support.tables import each

# --- publishing into a JetStream stream: resends, order, and the limit of waiting messages ----------------------------


class Server:
    """A bridge that answers as scripted, and a log that has what it is given.

    :ivar certain: sends before this one are stored or lost
    :ivar looks: behind which sequences ids were asked for
    """

    capabilities, prefix = SimpleNamespace(ack=Ack.STORED), "prefix"

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, str]] = []  # token, payload, id
        self.answers = PollResult()
        self.certain, self.stored, self.looks = 1 << 30, dict[str, int](), list[int]()

    def on_the_way(self, tokens: Int64s, topics: pa.DictionaryArray) -> OnTheWay | None:
        there = tokens >= self.certain
        return OnTheWay(there, -1e9, "server 'a' is silent") if there.any() else None

    def sequences_of(self, ids: set[str], after: int) -> dict[str, int]:
        self.looks.append(after)
        return {one: sequence for one, sequence in self.stored.items() if one in ids}

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        return ValidationResult()

    def send(self, batch: MessageBatch, first_token: int) -> int:
        assert batch.ids is not None
        rows = zip(batch.payloads.to_pylist(), batch.ids.to_pylist(), strict=True)
        self.sent += [(first_token + i, *row) for i, row in enumerate(rows)]
        return len(batch)

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        answers, self.answers = self.answers, PollResult()
        return answers

    def ack(self, *tokens: int, repeated: bool = False) -> None:
        numbers = np.array(tokens)
        self.answers.acks.append(Acks(numbers, numbers + 100, np.full(len(tokens), repeated), "S", 0.0))

    def refuse(self, *tokens: int, error: PublishError | None = None) -> None:
        self.answers.refusals.append(Refusals(np.array(tokens), error or NotReady("no leader"), 0.0))

    def tell(self, *kinds: EventKind) -> None:
        self.answers.events.extend(BridgeEvent(kind, "", 0.0) for kind in kinds)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.sent]


Make = Callable[..., tuple[StreamPublisher, Server, list[PendingPublish]]]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(publisher, "RESEND", (0.001, 0.001))

    def make(
        *contents: bytes, message_id: bytes = b"", buffer: int = 1 << 20, patience: float = math.inf
    ) -> tuple[StreamPublisher, Server, list[PendingPublish]]:
        server = Server()
        bridge, log = cast(PublisherBridge, server), cast(StoredLog, server)
        sender = StreamPublisher(bridge, log, "engine", buffer, patience)
        posts = [
            PendingPublish(n, "client", 0, b"w", b"s", [content], message_id) for n, content in enumerate(contents)
        ]
        for post in posts:
            sender.put(post)
        return sender, server, posts

    return make


def test_nothing_goes_again_before_all_that_is_on_the_way_is_answered(sending: Make) -> None:
    sender, server, posts = sending(b"a", b"b", b"c")
    sender.pump(0.0)
    server.refuse(0, 1)
    sender.pump(0.0)
    sender.pump(0.0)
    assert server.payloads == [b"a", b"b", b"c"]
    server.ack(2)
    sender.pump(0.0)
    sender.pump(0.0)
    assert server.payloads == [b"a", b"b", b"c", b"a", b"b"]
    assert [post.outcome for post in posts] == [None, None, StoreOutcome.STORED]


def test_what_was_not_answered_when_the_connection_was_lost_goes_again_in_order_with_its_id(sending: Make) -> None:
    sender, server, posts = sending(b"a", b"b", b"c")
    sender.pump(0.0)
    server.ack(1)
    server.tell(EventKind.DISCONNECTED)
    sender.pump(0.0)
    sender.pump(0.0)
    assert server.payloads == [b"a", b"b", b"c"], "nothing goes while it is away"
    server.tell(EventKind.RECONNECTED)
    for _ in range(3):  # the second one looks
        sender.pump(0.0)
    assert server.payloads == [b"a", b"b", b"c", b"a", b"c"]
    assert [one[2] for one in server.sent[3:]] == [server.sent[0][2], server.sent[2][2]]
    server.ack(3, 4, repeated=True)
    sender.pump(0.0)
    assert [post.outcome for post in posts] == [StoreOutcome.STORED] * 3, "an id of ours is repeated only by ourselves"
    assert not sender.busy


def test_what_may_not_be_sent_again_is_refused_at_once(sending: Make) -> None:
    sender, server, posts = sending(b"a", b"b")
    sender.pump(0.0)
    server.refuse(0, error=PermissionDenied("no permission"))
    server.ack(1)
    sender.pump(0.0)
    assert [post.outcome for post in posts] == [StoreOutcome.REFUSED, StoreOutcome.STORED]
    assert not sender.busy
    assert server.payloads == [b"a", b"b"]


def test_what_may_be_stored_waits_until_no_copy_can_come_and_goes_again_where_it_is_not_found(sending: Make) -> None:
    """However long that is: nothing relies on the duplicate window."""
    sender, server, (first, second, third) = sending(b"a", b"b", b"c")
    sender.pump(0.0)
    server.certain = 0
    server.ack(0)
    server.tell(EventKind.DISCONNECTED, EventKind.RECONNECTED)
    for _ in range(3):
        sender.pump(0.0)
    sender.put(late := PendingPublish(3, "client", 0, b"w", b"s", [b"d"]))
    sender.pump(0.0)
    assert (len(server.sent), server.looks) == (3, [])
    server.certain, server.stored = 100, {server.sent[1][2]: 107}
    until(lambda: len(server.sent) == 5, lambda: sender.pump(0.0))
    assert server.looks == [0], "one look"
    assert server.payloads == [b"a", b"b", b"c", b"c", b"d"]
    assert (second.outcome, second.sequence) == (StoreOutcome.STORED, 107)
    server.ack(3, 4)
    sender.pump(0.0)
    assert [one.outcome for one in (first, third, late)] == [StoreOutcome.STORED] * 3
    assert not sender.busy


def test_who_does_not_wait_is_told_how_many_may_be_stored_twice(
    sending: Make, caplog: pytest.LogCaptureFixture
) -> None:
    sender, server, _ = sending(b"a", b"b", b"found", patience=4.0)
    sender.pump(0.0)
    server.certain, server.stored = 0, {server.sent[2][2]: 107}
    server.tell(EventKind.DISCONNECTED, EventKind.RECONNECTED)
    until(lambda: len(server.sent) == 5, lambda: sender.pump(0.0))
    server.ack(3, 4)
    sender.pump(0.0)
    (said,) = [one for one in caplog.messages if "stored twice" in one]
    assert said.startswith("2 messages"), "what was found did not go again"


def test_a_repeated_id_of_a_client_is_a_duplicate(sending: Make) -> None:
    sender, server, (post,) = sending(b"a", message_id=b"mine")
    sender.pump(0.0)
    server.ack(0, repeated=True)
    sender.pump(0.0)
    assert (post.outcome, post.sequence) == (StoreOutcome.DUPLICATE, 100)


def test_what_waits_is_bounded_and_what_is_settled_waits_no_more(sending: Make) -> None:
    size = PendingPublish(0, "client", 0, b"w", b"s", [b"x" * 100]).size_bytes
    sender, server, posts = sending(*[b"x" * 100] * 3, buffer=2 * size)
    assert [post.outcome for post in posts] == [None, None, StoreOutcome.REFUSED]
    assert sender.waiting == 2 * size
    sender.pump(0.0)
    server.ack(0, 1)
    sender.pump(0.0)
    assert sender.waiting == 0
    late = PendingPublish(3, "client", 0, b"w", b"s", [b"x" * 100])
    sender.put(late)
    assert late.outcome is None


def test_an_engine_whose_stream_was_deleted_gives_back_all_that_it_has() -> None:
    """Also when messages wait, which are looked for in it."""
    engine, closed = JetStreamEngine(b"st", {"servers": "nats://x"}), list[str]()

    def pump(timeout: float) -> None:
        raise ConfigError("there is no stream")

    waits = {"busy": True, "down": False, "pump": pump}
    for part in ("_publisher", "_live", "_log"):
        setattr(engine, part, SimpleNamespace(**waits, close=partial(closed.append, part)))
    engine.close()
    assert closed == ["_publisher", "_live", "_log"]


# --- the payload of a message is split into frames only if the stored lengths match it --------------------------------


@each(
    ("lengths", "frames"),
    [
        ("1.3", [b"b", b"ody"]), ("0.4.0", [b"", b"body", b""]), ("1.2", [b"body"]), ("1.4", [b"body"]),
        ("4.1", [b"body"]), ("1.", [b"body"]), ("-", [b"body"]),
    ],
)  # fmt: skip
def test_lengths_that_do_not_add_up_to_the_payload_are_ignored(lengths: str, frames: list[bytes]) -> None:
    assert decode("a", b"body", [("Mlp-Frames", lengths)]).content == frames
