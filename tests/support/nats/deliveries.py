"""Deliveries of a consumer as the server writes them, and the records that they are."""

from __future__ import annotations

from typing import NamedTuple

from mama_spark.contracts.record_log import Records
from mama_spark.nats.protocol.records import DeliveryBuffer, delivery_numbers, records_of

SID = 7
PLAIN = "$JS.ACK.S.mama-x"
WITH_DOMAIN = "$JS.ACK.hub.abc123.S.mama-x"
FORMS = [(PLAIN, ""), (WITH_DOMAIN, ""), (WITH_DOMAIN, ".Xr4nd")]


class NatsDelivery(NamedTuple):
    subject: str
    headers: list[tuple[str, list[str]]] | None
    payload: bytes


def block(headers: list[tuple[str, list[str]]]) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, values in headers for value in values]
    return ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode()


def frame(d: NatsDelivery, reply: str, sid: int = SID) -> bytes:
    if d.headers is None:
        return b"MSG %b %d %b %d\r\n%b\r\n" % (d.subject.encode(), sid, reply.encode(), len(d.payload), d.payload)
    head = block(d.headers)
    line = b"HMSG %b %d %b %d %d\r\n" % (d.subject.encode(), sid, reply.encode(), len(head), len(head) + len(d.payload))
    return line + head + d.payload + b"\r\n"


def reply(i: int, form: tuple[str, str] = (PLAIN, ""), pending: int = 5, delivered: int = 1) -> str:
    return f"{form[0]}.{delivered}.{10 * i + 3}.{i}.{1_700_000_000_000_000_999 + 1000 * i}.{pending}{form[1]}"


class DecodedBatch(NamedTuple):
    records: Records
    first: int
    pending: int


def columns(buffer: DeliveryBuffer, headers: bool = True) -> DecodedBatch:
    """A buffer of deliveries as records, the consumer's sequence of the first, and what was pending after the last."""
    numbers = delivery_numbers(buffer)
    return DecodedBatch(records_of(buffer, numbers, headers), numbers.first, numbers.pending)


def held_to(buffer: DeliveryBuffer, sent: list[NatsDelivery], first: int = 1) -> None:
    taken = columns(buffer)
    r = taken.records
    assert taken.first == first
    assert r.sequences.tolist() == [10 * i + 3 for i in range(first, first + len(sent))]
    assert r.times.tolist() == [1_700_000_000_000_000 + i for i in range(first, first + len(sent))]
    assert r.topics.to_pylist() == [d.subject for d in sent]
    assert r.payloads.to_pylist() == [d.payload for d in sent]
    headers = [None] * len(sent) if r.headers is None else r.headers.to_pylist()
    assert headers == [d.headers for d in sent]
