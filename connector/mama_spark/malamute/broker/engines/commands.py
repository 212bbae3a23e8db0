"""The broker's commands to a stream's engine (:data:`EngineCommand`), and the engine's :data:`Report`. Pure.

``NAME`` is the command's name in the Malamute stream specification, or ours if it has none; VERBOSE and $TERM are sent
as frames and have no class. ``client`` is an opaque reference that engines compare and hash.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mama_spark.malamute.protocol.extensions import AckRun, Extension
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.malamute.protocol.message_blocks import MessageBlock

from .base import Delivery


@dataclass(slots=True)  # not frozen: one is made per message, and freezing triples the cost
class AcceptMessage:
    """Publish one message of the client with this address. ``extension`` = None: no SYNC will follow."""

    NAME: ClassVar[str] = "ACCEPT"
    client: Hashable
    address: bytes
    subject: bytes
    content: Sequence[bytes]
    extension: Extension | None = None


@dataclass(frozen=True, slots=True)
class AcceptBlock:
    """Publish the messages of a block, like one :class:`AcceptMessage` each."""

    NAME: ClassVar[str] = "BLOCK"
    client: Hashable
    address: bytes
    block: MessageBlock


@dataclass(frozen=True, slots=True)
class ConnectTraffic:
    """Request an answer when the engine is connected to the socket for deliveries; a frame has the endpoint."""

    NAME: ClassVar[str] = "TRAFFIC"


@dataclass(frozen=True, slots=True)
class CompilePattern:
    """Subscribe the client; stored messages with a sequence above ``after`` are replayed first (None: none)."""

    NAME: ClassVar[str] = "COMPILE"
    client: Hashable
    pattern: bytes
    after: int | None = None


@dataclass(frozen=True, slots=True)
class CancelSubscriptions:
    """End all subscriptions of the client, and forget it."""

    NAME: ClassVar[str] = "CANCEL"
    client: Hashable


@dataclass(frozen=True, slots=True)
class GiveCredit:
    """Allow more deliveries to the client; None = no limit."""

    NAME: ClassVar[str] = "CREDIT"
    client: Hashable
    amount: int | None


@dataclass(frozen=True, slots=True)
class RecallCredit:
    """Return the client's unused credit at the end of the batch."""

    NAME: ClassVar[str] = "RECALL"
    client: Hashable


@dataclass(frozen=True, slots=True)
class SyncOutcomes:
    """Report the outcomes of the client's messages since its last SYNC."""

    NAME: ClassVar[str] = "SYNC"
    client: Hashable


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    """Answer a query of the client about the store, at the end of the batch."""

    NAME: ClassVar[str] = "ASK"
    client: Hashable
    query: LogQuery


#: Answered by the engine, in order.
AnsweredCommand = ConnectTraffic | CompilePattern | CancelSubscriptions | SyncOutcomes
EngineCommand = AnsweredCommand | AcceptMessage | AcceptBlock | GiveCredit | RecallCredit | AnswerQuery


@dataclass(frozen=True, slots=True)
class CommandDone:
    """The engine has done one TRAFFIC, COMPILE, CANCEL or SYNC, or refused the pattern (``error``). ``runs``: the
    outcomes requested by SYNC; ``position``: sequence after which a subscription without ``after`` begins; ignored when
    reports are compared."""

    error: str | None = None
    runs: tuple[AckRun, ...] = ()
    position: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine raised an error and its stream has ended: the last report."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CreditReturned:
    """The answer to RECALL: unused credit of the client, which is taken back."""

    client: Hashable
    amount: int


@dataclass(frozen=True, slots=True)
class QueryAnswered:
    """The answer to the client's oldest ASK, and in ``records`` the frames of the STREAM DELIVERs that go before it."""

    client: Hashable
    answer: LogQueryAnswer
    records: list[list[bytes]]


Report = list[Delivery | CommandDone | CreditReturned | QueryAnswered | EngineFailed]
