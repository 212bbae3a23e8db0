"""Reports of an engine to the broker other than deliveries, one class each. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.extensions import AckRun
from mama_spark.malamute.protocol.log_query import LogQueryAnswer

from .base import Delivery


@dataclass(frozen=True, slots=True)
class CommandDone:
    """The engine has done one TRAFFIC, COMPILE, CANCEL or SYNC.

    :ivar error: why it refused the pattern
    :ivar runs: the outcomes requested by SYNC
    :ivar position: sequence after which a subscription without ``after`` begins; ignored when reports are compared
    """

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
    """The answer to the client's oldest ASK.

    :ivar records: frames of the STREAM DELIVERs that go before it
    """

    client: Hashable
    answer: LogQueryAnswer
    records: list[list[bytes]]


#: Any report of an engine.
Report = list[Delivery | CommandDone | CreditReturned | QueryAnswered | EngineFailed]
