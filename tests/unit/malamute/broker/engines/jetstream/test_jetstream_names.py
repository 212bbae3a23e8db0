"""Malamute messages as messages of JetStream, what the JetStream engine publishes, and its settings."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import (
    Ack,
    Acks,
    BridgeEvent,
    EventKind,
    PollResult,
    PublisherBridge,
    Refusals,
    ValidationResult,
)
from mama_spark.contracts.errors import ConfigError, NotReady, PermissionDenied, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.malamute.broker.engines.jetstream import publisher
from mama_spark.malamute.broker.engines.jetstream.message_codec import (
    JetStreamMessage,
    Origin,
    Unreadable,
    decode,
    decode_records,
    decode_subject,
    encode_id,
    encode_name,
    encode_subject,
    header_lines,
)
from mama_spark.malamute.broker.engines.jetstream.publisher import PendingPublish, StreamPublisher, batch_of
from mama_spark.malamute.broker.engines.jetstream.settings import JetStreamSettings
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome, write
from mama_spark.nats.protocol.frames import Framer
from mama_spark.nats.protocol.headers import check
from mama_spark.nats.protocol.parser import read_frame
from mama_spark.nats.protocol.records import header_column, read_block
from mama_spark.publishing.ids.id_lifetime import known_for

from tests.support.tables import each


def lines_of(block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, values in read_block(block) for value in values]


ORIGIN = Origin("e", 1, 2)
NO_NUL = st.binary(max_size=255).map(lambda octets: octets.replace(b"\0", b""))


@each(
    ("subject", "token"),
    [
        (b"temp.moscow", "temp.moscow"),
        ("größe.ç".encode(), "größe.ç"),
        (b"", "%"),
        (b"a..b.", "a.%.b.%"),
        (b"a b", "a%20b"),
        (b"a.*.>", "a.%2A.%3E"),
        (b"100%", "100%25"),
        (b"\xff\xc3\xb6", "%FF%C3%B6"),
    ],
)
def test_subjects_stay_readable_where_nats_allows(subject: bytes, token: str) -> None:
    assert encode_subject(subject) == token
    assert decode_subject(token.encode()) == subject


@given(st.binary(max_size=255))
def test_every_subject_comes_back_and_is_one_that_nats_takes(subject: bytes) -> None:
    encoded = encode_subject(subject)
    assert decode_subject(encoded.encode()) == subject
    assert not re.search(r"[\x00-\x20\x7f*>]|(?:^|\.)(?:\.|$)", encoded)
    assert len(encoded.encode()) <= 3 * max(1, len(subject))


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_different_streams_have_different_names(one: bytes, other: bytes) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)
    assert re.fullmatch(r"[A-Za-z0-9_%-]+", encode_name(one))


@pytest.mark.spec("ML-19")
@given(
    subject=NO_NUL,
    sender=NO_NUL,
    content=st.lists(st.binary(max_size=20), max_size=4),
    message_id=st.binary(max_size=40),
    headers=st.lists(st.tuples(st.binary(max_size=10), st.binary(max_size=10)), max_size=4),
)
def test_any_message_round_trips(
    subject: bytes, sender: bytes, content: list[bytes], message_id: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Through the columns and frames that go to the server, and the rules that it has for headers."""
    post = PendingPublish(2, None, 1, sender, subject, content, message_id, tuple(headers))
    batch = batch_of([post], "e", "p")
    assert check(batch, 1 << 20) == ({}, None), "nothing that the server would refuse, or obey"
    data = bytes(Framer(None).frames(batch))
    line, _, rest = data.partition(b"\r\n")
    frame = read_frame(b"HMSG p 1 %s\r\n%s" % (b" ".join(line.split(b" ")[-2:]), rest))
    assert frame is not None
    block = rest[: frame.header_size]
    topic, one = pa.array([line.split(b" ")[1].decode()]), np.array([1])
    records = Records(one, one, topic, pa.array([bytes(frame.payload)]), header_column([block], 1))
    ((_, _, got),) = decode_records(records, "p", "S")
    assert got == JetStreamMessage(subject, sender, content, message_id, tuple(headers), ORIGIN)


def test_headers_are_those_of_nats_unless_the_server_would_obey_them() -> None:
    assert header_lines([(b"Mama-Root", b"r"), (b"k", b"v w")]) == [("Mama-Root", "r"), ("k", "v w")]
    for name in (b"Nats-Rollup", b"nats-ttl", b"Mlp-Sender", b"Status", b"a b", b""):
        ((line, _),) = header_lines([(name, b"v")])
        assert line == "Mlp-Headers"
    assert header_lines([(b"k", b"1"), (b"K", b"\n")]) == [("Mlp-Headers", "k=1&K=%0A")]


def test_ids_of_messages_without_one_are_no_ids_of_clients() -> None:
    assert encode_id(b"", ORIGIN) == "%!e.1.2"
    assert encode_id(b"%!e.1.2", ORIGIN) == "%25!e.1.2"
    assert encode_id(b"plain-1", ORIGIN) == "plain-1"


def test_what_nats_clients_publish_is_read_by_the_same_rules() -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: x\r\nNats-TTL: 5s\r\nA: 1\r\na:2\r\nbroken\r\nMlp-Frames: 9.9\r\n\r\n"
    letter = decode("a.b", b"body", lines_of(block))
    assert letter == JetStreamMessage(b"a.b", b"", [b"body"], b"x", ((b"A", b"1"), (b"a", b"2")), None)
    assert decode("a", b"", ()) == JetStreamMessage(b"a", b"", [b""], b"", (), None)


@pytest.mark.parametrize("size", [65_532, 65_533])
def test_a_message_with_a_header_too_large_for_a_field_is_unreadable(size: int) -> None:
    """NATS allows headers up to the size of a payload."""
    blocks = [b"NATS/1.0\r\n%s: %s\r\n\r\n" % (name, b"x" * size) for name in (b"k", b"Nats-Msg-Id")]
    if size + 3 > 65_535:
        with pytest.raises(Unreadable):
            decode("a", b"", lines_of(blocks[0]))
        with pytest.raises(Unreadable):
            decode("a", b"", [("Nats-Msg-Id", "x" * 65_536)])
        return
    for block in blocks:
        letter = decode("a", b"", lines_of(block))
        assert write(Extension(message_id=letter.message_id, headers=letter.headers))


@pytest.mark.parametrize("subject", ["a" * 256, "a%00b"])
def test_what_malamute_cannot_carry_is_no_message_of_it(subject: str) -> None:
    with pytest.raises(Unreadable):
        decode(subject, b"", ())


# --- settings ----------------------------------------------------------------------------------------------------


@each(
    ("settings", "text"),
    [
        ({}, "the key servers is missing"),
        ({"servers": "x", "server": "y"}, "did you mean 'servers'"),
        ({"servers": ""}, "servers must be a text"),
        ({"servers": "x", "replicas": 0}, "replicas must be"),
        ({"servers": "x", "replicas": True}, "replicas must be"),
        ({"servers": "x", "max_age": -1}, "max_age must be"),
        ({"servers": "x", "max_age": "0.1ms"}, "max_age must be a millisecond"),
        ({"servers": "x", "dedup_window": "999ms"}, "dedup_window must be a second or more"),
        ({"servers": "x", "storage": "tape"}, "one of file, memory"),
        ({"servers": "x", "create": "yes"}, "true or false"),
        ({"servers": "x", "stream": "a.b"}, "letters, digits"),
        ({"servers": "x", "subjects": "a..{stream}"}, "tokens such as"),
        ({"servers": "x", "subjects": "a.>"}, "tokens such as"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JetStreamSettings.parse(b"s", settings)


def test_names_in_jetstream_follow_the_templates() -> None:
    settings = JetStreamSettings.parse(b"a.b", {"servers": "nats://h:1, nats://i:2", "stream": "{stream}"})
    assert settings.names(b"a.b") == ("a%2Eb", "mlp.a%2Eb")
    assert settings.transport.url == ("nats://h:1", "nats://i:2")


def test_a_name_that_is_too_long_for_jetstream_ends_with_its_hash() -> None:
    settings = JetStreamSettings.parse(b"s", {"servers": "nats://h:1"})
    longest, other = (settings.names(b"s" * 254 + end)[0] for end in (b"1", b"2"))
    assert len(longest) == len(other) == 255
    assert longest[:222] == other[:222]
    assert longest != other
    assert len(settings.names(b"." * 255)[0]) == 255
    assert settings.names(b"s" * 251)[0] == "mlp-" + "s" * 251
    with pytest.raises(ConfigError, match="at most 255"):
        JetStreamSettings.parse(b"s", {"servers": "nats://h:1", "stream": "s" * 256})


def test_secrets_are_not_shown() -> None:
    shown = repr(JetStreamSettings.parse(b"s", {"servers": "nats://u:hidden@h", "password": "hidden"}))
    assert "hidden" not in shown


# --- What the engine over JetStream publishes -------------------------------------------------------------------------

# --- publishing into a JetStream stream: resends, order, and the limit of waiting messages ----------------------------


class Server:
    """A bridge that stores sent messages, and answers as scripted."""

    capabilities = SimpleNamespace(ack=Ack.STORED)

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, str]] = []  # token, payload, id
        self.answers = PollResult()

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


WINDOW = 120.0
Make = Callable[..., tuple[StreamPublisher, Server, list[PendingPublish]]]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(publisher, "RESEND", (0.001, 0.001))

    def make(
        *contents: bytes, message_id: bytes = b"", buffer: int = 1 << 20
    ) -> tuple[StreamPublisher, Server, list[PendingPublish]]:
        server = Server()
        sender = StreamPublisher(cast(PublisherBridge, server), "engine", "prefix", WINDOW, buffer)
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


def test_what_may_be_stored_and_be_forgotten_ends_the_stream_counted_from_the_send_that_may_be_stored(
    sending: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, server, _ = sending(b"a")
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(publisher, "time", clock)
    sender._loop.clock = clock.monotonic
    sender.pump(0.0)
    for seconds, kinds in (
        (2 * known_for(WINDOW), ()),  # refused until now: certainly not stored
        (0.9 * known_for(WINDOW), (EventKind.DISCONNECTED, EventKind.RECONNECTED)),
    ):
        now += seconds
        if kinds:
            server.tell(*kinds)
        else:
            server.refuse(0)
        sender.pump(0.0)
        sender.pump(0.0)
    assert server.payloads == [b"a"] * 3
    now += 0.2 * known_for(WINDOW)
    server.tell(EventKind.DISCONNECTED, EventKind.RECONNECTED)
    sender.pump(0.0)
    with pytest.raises(
        Unavailable, match=r"nothing was heard of NATS for 66 s; .* nobody can say whether it is stored"
    ):
        sender.pump(0.0)


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
        ("1.3", [b"b", b"ody"]),
        ("0.4.0", [b"", b"body", b""]),
        ("1.2", [b"body"]),
        ("1.4", [b"body"]),
        ("4.1", [b"body"]),
        ("1.", [b"body"]),
        ("-", [b"body"]),
    ],
)
def test_lengths_that_do_not_add_up_to_the_payload_are_ignored(lengths: str, frames: list[bytes]) -> None:
    assert decode("a", b"body", [("Mlp-Frames", lengths)]).content == frames
