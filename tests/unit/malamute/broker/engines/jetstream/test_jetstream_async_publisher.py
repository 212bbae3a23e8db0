"""What the engine over JetStream publishes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.bridge import Acks, BridgeEvent, EventKind, PollResult, Refusals
from mama_spark.contracts.errors import NoResponders, PermissionDenied, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.broker.engines.jetstream import async_publisher
from mama_spark.malamute.broker.engines.jetstream.async_publisher import AsyncPublisher, PendingPublish
from mama_spark.malamute.broker.engines.jetstream.message_codec import decode
from mama_spark.malamute.protocol.extensions import StoreOutcome
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

# --- publishing into a JetStream stream: resends, order, and the limit of waiting messages ----------------------------


class Server:
    """A bridge that stores sent messages, and answers as scripted."""

    capabilities = SimpleNamespace(max_payload=1 << 20)

    def __init__(self, settings: NatsSettings) -> None:
        self.sent: list[tuple[int, bytes, str]] = []  # token, payload, id
        self.answers = PollResult()

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
        self.answers.refusals.append(Refusals(np.array(tokens), error or NoResponders("no leader"), 0.0))

    def tell(self, *kinds: EventKind) -> None:
        self.answers.events.extend(BridgeEvent(kind, "", 0.0) for kind in kinds)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.sent]


Make = Callable[..., tuple[AsyncPublisher, Server, list[PendingPublish]]]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(async_publisher, "NatsBridge", Server)
    monkeypatch.setattr(async_publisher, "RESEND", Backoff(0, 0))

    def make(
        *contents: bytes, message_id: bytes = b"", buffer: int = 1 << 20
    ) -> tuple[AsyncPublisher, Server, list[PendingPublish]]:
        sender = AsyncPublisher(NatsSettings(), "engine", "prefix", 120.0, buffer)
        posts = [
            PendingPublish(n, "client", 0, b"w", b"s", [content], message_id) for n, content in enumerate(contents)
        ]
        for post in posts:
            sender.put(post)
        server = sender._bridge
        assert isinstance(server, Server)
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
    sender.pump(0.0)
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


def test_what_nobody_answered_in_time_goes_again_and_a_late_answer_settles_it(
    sending: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, server, (post,) = sending(b"a")
    monkeypatch.setattr(async_publisher, "ACK_TIMEOUT", 0.0)
    sender.pump(0.0)
    monkeypatch.undo()
    assert sender.stalled_since is not None
    server.ack(0)
    sender._poll(0.0)
    assert post.outcome is StoreOutcome.STORED
    sender.pump(0.0)
    assert not sender.busy
    assert server.payloads == [b"a"], "the answer came before the resend"


def test_a_repeated_id_of_a_client_is_a_duplicate(sending: Make) -> None:
    sender, server, (post,) = sending(b"a", message_id=b"mine")
    sender.pump(0.0)
    server.ack(0, repeated=True)
    sender.pump(0.0)
    assert (post.outcome, post.sequence) == (StoreOutcome.DUPLICATE, 100)


def test_what_waits_is_bounded_and_what_is_settled_waits_no_more(sending: Make) -> None:
    size = PendingPublish(0, "client", 0, b"w", b"s", [b"x" * 100]).octets
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


# --- the payload of a message is split into frames only if the stored lengths match it --------------------------------


@each(
    ("lengths", "frames"),
    [
        (b"1.3", [b"b", b"ody"]),
        (b"0.4.0", [b"", b"body", b""]),
        (b"1.2", [b"body"]),
        (b"1.4", [b"body"]),
        (b"4.1", [b"body"]),
        (b"1.", [b"body"]),
        (b"-", [b"body"]),
    ],
)
def test_lengths_that_do_not_add_up_to_the_payload_are_ignored(lengths: bytes, frames: list[bytes]) -> None:
    assert decode(b"a", b"body", b"NATS/1.0\r\nMlp-Frames: %b\r\n\r\n" % lengths).content == frames
