"""Malamute messages as messages of JetStream, and the settings of the JetStream engine."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Records
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
from mama_spark.malamute.broker.engines.jetstream.publisher import PendingPublish, batch_of
from mama_spark.malamute.broker.engines.jetstream.settings import JetStreamSettings
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.nats.protocol.frames import Framer
from mama_spark.nats.protocol.headers import check
from mama_spark.nats.protocol.parser import read_frame
from mama_spark.nats.protocol.records import header_column, read_block

from tests.support.tables import each


def lines_of(block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, values in read_block(block) for value in values]


ORIGIN = Origin("e", 1, 2)
NO_NUL = st.binary(max_size=255).map(lambda raw: raw.replace(b"\0", b""))


@each(
    ("subject", "token"),
    [
        (b"temp.moscow", "temp.moscow"), ("größe.ç".encode(), "größe.ç"), (b"", "%"), (b"a..b.", "a.%.b.%"),
        (b"a b", "a%20b"), (b"a.*.>", "a.%2A.%3E"), (b"100%", "100%25"), (b"\xff\xc3\xb6", "%FF%C3%B6"),
    ],
)  # fmt: skip
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
    data = b"".join(Framer(None).frames(batch).pieces)
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
        ({}, "the key servers is missing"), ({"servers": "x", "server": "y"}, "did you mean 'servers'"),
        ({"servers": ""}, "servers must be a text"), ({"servers": "x", "replicas": 0}, "replicas must be"),
        ({"servers": "x", "replicas": True}, "replicas must be"), ({"servers": "x", "max_age": -1}, "max_age must be"),
        ({"servers": "x", "max_age": "0.1ms"}, "max_age must be a millisecond"),
        ({"servers": "x", "dedup_window": "999ms"}, "dedup_window must be a second or more"),
        ({"servers": "x", "storage": "tape"}, "one of file, memory"),
        ({"servers": "x", "create": "yes"}, "true or false"), ({"servers": "x", "stream": "a.b"}, "letters, digits"),
        ({"servers": "x", "subjects": "a..{stream}"}, "tokens such as"),
        ({"servers": "x", "subjects": "a.>"}, "tokens such as"),
    ],
)  # fmt: skip
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
