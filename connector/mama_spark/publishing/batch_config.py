"""Configuration of a batch publisher: pace, conduct in an outage, callbacks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ..contracts.bridge import BridgeEvent
from ..contracts.errors import PublishError
from ..contracts.message import MessageBatch
from ..options.window_config import WindowConfig
from .window.send_loop import StoredCheck


class OnOutage(Enum):
    """Conduct of a publisher when messages wait and none is acknowledged for too long."""

    FAIL = "fail"  #: end with :class:`~mama_spark.contracts.errors.Unavailable`
    FAIL_AT_GAP = "fail_at_gap"
    """As ``FAIL``, and stop at the first timed-out message, because later rows would overtake it."""
    FAIL_ROWS = "fail_rows"  #: go on: waiting and new messages fail until the middleware takes messages again
    WAIT = "wait"  #: neither end nor fail: wait until messages are stored again
    WAIT_AT_GAP = "wait_at_gap"  #: wait in outages, but stop at the first timed-out message

    @property
    def waits(self) -> bool:
        return self in (OnOutage.WAIT, OnOutage.WAIT_AT_GAP)

    @property
    def ends_at_gap(self) -> bool:
        return self in (OnOutage.FAIL_AT_GAP, OnOutage.WAIT_AT_GAP)

    def at_last(self, timeout: float) -> str:
        """Text: what follows if the outage lasts, which is declared after ``timeout`` seconds; infinite = never."""
        if math.isinf(timeout):
            return "waiting until messages are stored again"
        return f"after {timeout:g} s {'the messages fail' if self is OnOutage.FAIL_ROWS else 'the write gives up'}"


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The rules of a batch publisher.

    :param outage_timeout: seconds without an acknowledgement that are an outage; None =
        :attr:`.WindowConfig.longest_silence`
    :param rate: new messages a second; None = no limit
    :param flush_after: seconds without a send after which the middleware is asked to answer for what it has
    :param poll_time: longest wait in seconds (MP-07)
    :param max_queued: batches that wait to be sent; :meth:`.BatchPublisher.put` blocks beyond it
    :param name, log_prefix: name of the thread; prefix of lines of the log about the connection and outages
    """

    on_outage: OnOutage = OnOutage.FAIL
    outage_timeout: float | None = None
    rate: float | None = None
    flush_after: float = 0.2
    poll_time: float = 0.1
    max_queued: int = 2
    name: str = ""
    log_prefix: str = ""


@dataclass(frozen=True, slots=True)
class BatchHooks:
    """Callbacks of a batch publisher, on its thread.

    :param open_bridge: called first: opens the bridge, and returns the rules for its capabilities, in place of
        ``policy``; None = the bridge is open
    :param awaited: whether new messages must wait for answers: then the middleware is asked for them after the last
        send
    :param outgoing: see :class:`~mama_spark.publishing.window.send_loop.SendLoop`
    :param on_event: gets events of the transport before the publisher reacts to them
    :param on_resend: gets the reason of resends, at most once a round
    """

    open_bridge: Callable[[], WindowConfig] | None = None
    awaited: Callable[[], bool] = lambda: False
    outgoing: Callable[[MessageBatch], MessageBatch] | None = None
    on_event: Callable[[BridgeEvent], None] | None = None
    on_resend: Callable[[PublishError], None] | None = None


class SendGuard(StoredCheck, Protocol):
    """Tells whether this publisher may still send these messages."""

    @property
    def expired(self) -> bool:
        """Whether another publisher may take over at any moment."""

    @property
    def unfenced(self) -> bool:
        """Whether copies from another publisher may still be stored, so that each message may be stored twice."""

    def may_send(self) -> bool:
        """Whether to send now; asked again soon. Unavailable: another publisher has taken over for good."""

    def all_answered(self) -> None:
        """Note that the publisher has ended, and that none of its messages can be stored later."""
