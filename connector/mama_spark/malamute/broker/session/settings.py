"""Limits and policies for all clients of a broker. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mama_spark.malamute.protocol.extensions import ALL, Feature
from mama_spark.options.declare import option
from mama_spark.options.times import duration_or_none
from mama_spark.options.values import byte_size, integer, member

#: Approximate memory in bytes of a waiting message besides its content. Addresses, subject and tracker are in it: it is
#: more than :data:`.credit.MESSAGE_OVERHEAD`, which comes on top of all frames.
LETTER_OVERHEAD = 512


class Overflow(StrEnum):
    """Policy of a full queue for one more item."""

    DROP_NEWEST = "drop-newest"  #: the new item is lost; the reference's only way
    DROP_OLDEST = "drop-oldest"  #: the oldest items are lost until the new one fits
    DISCONNECT = "disconnect"  #: the new item and its client are lost


class EngineBacklogPolicy(StrEnum):
    """Policy for messages to a stream whose engine is slow and has a full backlog."""

    DROP_NEWEST = "drop-newest"  #: lost; a client that gets acknowledgements is disconnected
    DISCONNECT = "disconnect"  #: lost, and so is the client that sent them
    HOLD = "hold"  #: nothing is lost: no client is read until the engine continues, however long that takes


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of content: of one mailbox or service (``each``), and of all, plus :data:`LETTER_OVERHEAD` a message
    (``total``)."""

    each: int | None = option(
        "size", byte_size, 64 * 1024 * 1024, "mailboxes", "Most bytes for one address.", shown="64 MiB"
    )
    total: int | None = option(
        "size", byte_size, 512 * 1024 * 1024, "mailboxes",
        "Most bytes for all; a message counts 512 bytes more.", shown="512 MiB",
    )  # fmt: skip
    warn: int | None = option("size", byte_size, None, "mailboxes", "Log a warning beyond this.", shown="never")
    overflow: Overflow = option(
        "`drop-newest`, `drop-oldest`", member(Overflow), Overflow.DROP_NEWEST, "mailboxes",
        "Beyond a limit.", shown="`drop-newest`",
    )  # fmt: skip
    count: int = option("integer", integer(1), 100_000, "mailboxes", "Most addresses with waiting messages.")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The table ``[clients]``, and limits of mailboxes and services.

    :ivar repeats: repeated WRITE, READ and OFFER answered per client and second; more are executed and not answered,
        which ends the replay storm of the C client
    :ivar pong_silence: seconds without PONG after which a plain client that sends gets one unasked
        (:meth:`.clients.Connections.send_pongs`); 0 = never
    """

    timeout: float = option(
        "duration", duration_or_none, 10.0, "clients",
        "A client without a frame for this long is dropped; 0: never.", shown="10s",
    )  # fmt: skip
    queue: int = option(
        "size", byte_size, 64 * 1024 * 1024, "clients",
        "Most bytes for a client that takes no more; a message counts 256 bytes more.",
        shown="64 MiB",
    )  # fmt: skip
    overflow: Overflow = option(
        "`drop-newest`, `drop-oldest`, `disconnect`", member(Overflow), Overflow.DROP_NEWEST, "clients",
        "Beyond `queue`; deliveries of engines that hold never reach it.", shown="`drop-newest`",
    )  # fmt: skip
    backlog: int = option(
        "size", byte_size, 64 * 1024 * 1024, "clients",
        "Most bytes that wait for the engine of one stream.", shown="64 MiB",
    )  # fmt: skip
    behind: EngineBacklogPolicy = option(
        "`drop-newest`, `disconnect`, `hold`", member(EngineBacklogPolicy), EngineBacklogPolicy.DROP_NEWEST, "clients",
        "Beyond `backlog`; `hold`: all clients wait.", shown="`drop-newest`",
    )  # fmt: skip
    repeats: int = 100
    pong_silence: float = 1.0
    events: bytes = b"_MAMA_EVENTS"  #: the broker's own stream (:mod:`.broker_events`); empty = none
    streams: int = option("integer", integer(1), 4096, "clients", "Most open streams of all clients.")
    client_streams: int = option(
        "integer", integer(1), 1024, "clients", "Most streams that one client reads and writes."
    )
    stream_idle: float = option(
        "duration", duration_or_none, 30.0, "clients",
        "A stream without clients ends after this time; 0: never.", shown="30s",
    )  # fmt: skip
    patterns: int = option("integer", integer(1), 100_000, "clients", "Most subscriptions and offers of one client.")
    mailboxes: Limits = field(default_factory=Limits)
    services: Limits = field(default_factory=Limits)
    features: Feature = ALL  #: for clients that announce them
