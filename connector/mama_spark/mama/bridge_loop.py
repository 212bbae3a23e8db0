"""The one thread that calls the bridge of a transport: sends, polls, and reports each answer to its listener.

A send cannot interrupt a bridge's ``poll``, so this thread polls with time-out 0 and waits between polls on a condition
that new work notifies. It polls every 1 to 20 ms while answers are due, otherwise every 50 ms. Sends are no flights of
a window, because each is alone: columns of one element take half as much processor time again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar

from ..contracts.backoff import Backoff
from ..contracts.bridge import Ack, BridgeEvent, EventKind, PublisherBridge, RequestBridge, RequestMessage
from ..contracts.errors import (
    AckTimeout,
    BackgroundTaskFailed,
    ClientClosed,
    MamaError,
    OutcomeUnknown,
    PublishError,
    Rejected,
    Stopped,
)
from ..contracts.message import MessageBatch
from .messages.status import Status, StatusError
from .states import status_of

logger = logging.getLogger("mama_spark")
T = TypeVar("T")

_POLL = Backoff(0.001, 0.02)  #: seconds between polls while answers are due
_IDLE = 0.05  #: seconds between polls while no answer is due
_MAX_REMEMBERED = 4096  #: sends kept for a bridge without acknowledgements, to match permission errors


class SendOutcome(NamedTuple):
    """A positive acknowledgement; None where the middleware does not report a value."""

    stream: str | None
    sequence: int | None


#: Receives the outcome of a send, in one call on the loop's thread. None: unknown, as the bridge acknowledges nothing.
SendListener = Callable[[SendOutcome | PublishError | None], None]


class PendingSend(NamedTuple):
    settled: SendListener
    deadline: float


class _BridgeFull(Exception):
    """The bridge accepts no message at the moment."""


class _Work(NamedTuple):
    call: Callable[[], Any]
    future: Future[Any]
    deadline: float


class BridgeLoop:
    """Runs a bridge from :meth:`start` to :meth:`stop`.

    :param call_timeout: seconds that a call may wait until the bridge accepts it
    :param answer_timeout: seconds after which a send without an answer counts as lost
    :param on_event: gets events of the connection, on the loop's thread
    """

    def __init__(
        self,
        name: str,
        bridge: PublisherBridge,
        on_event: Callable[[BridgeEvent], None],
        *,
        call_timeout: float,
        answer_timeout: float,
    ) -> None:
        self.bridge = bridge
        self.requests: RequestBridge | None = None
        #: Receivers of replies by inbox number, and of requests by topic.
        self.receivers: dict[int | str, Callable[[RequestMessage], None]] = {}
        self._call_timeout, self._answer_timeout = call_timeout, answer_timeout
        self._on_event = on_event
        self._work: deque[_Work] = deque()
        self._flights: dict[int, PendingSend] = {}
        self._token = 0
        self._outstanding_acks = 0  # unanswered sends, with and without a listener
        self._outstanding_from = 0  # first token counted; earlier sends have an unknown outcome and are not waited for
        self._stop_deadline = 0.0  # monotonic seconds until which a stopping loop waits for answers
        self._closed: PublishError | None = None
        self._death: BaseException | None = None
        self._ending = self._over = self._working = False
        self._changed = threading.Condition()
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"mama-transport-{name}", daemon=True)

    # --- any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the bridge.

        :raises MamaError: it cannot be opened
        """
        self._thread.start()
        self._opened.result()

    @property
    def here(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def tracked(self) -> int:
        return len(self._flights)

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the loop's thread after all work queued before, and return its result. On that thread itself
        it runs at once.

        :raises StatusError: the bridge refused it, accepted nothing in time (TIMEOUT), or has ended
        """
        if self.here:
            try:
                return work()
            except _BridgeFull:
                if self._working:  # nested call: the outer one is retried
                    raise
                raise StatusError(Status.PLATFORM, "the transport accepts no calls now") from None
            except MamaError as error:
                raise as_status(error) from error
        future: Future[T] = Future()
        with self._changed:
            self._raise_ended()
            self._work.append(_Work(work, future, time.monotonic() + self._call_timeout))
            self._changed.notify_all()
        try:
            return future.result()
        except StatusError:
            raise
        except MamaError as error:
            raise as_status(error) from error

    def post(self, work: Callable[[], None]) -> None:
        """Queue ``work`` for the loop's thread without waiting for it; ignored once the loop has ended."""
        with self._changed:
            if not self._over:
                self._work.append(_Work(work, Future(), time.monotonic() + self._call_timeout))
                self._changed.notify_all()

    def call_or_run_inline(self, work: Callable[[], None], timeout: float) -> None:
        """:meth:`call` for work that must not be skipped: once the loop has ended it runs on the caller's thread. Logs
        errors of the bridge; returns after ``timeout`` seconds even if the work goes on."""

        def do() -> None:
            try:
                work()
            except MamaError as error:
                logger.warning("%r: %s", self.bridge, error)

        if self.here:
            do()
            return
        future: Future[None] = Future()
        with self._changed:
            over = self._over
            if not over:
                self._work.append(_Work(do, future, time.monotonic() + timeout))
                self._changed.notify_all()
        try:
            if not over:
                future.result(timeout)
                return
        except FutureTimeout:
            return
        except ClientClosed:  # the loop ended before it ran the work
            pass
        self._thread.join()
        do()

    def stop(self, timeout: float) -> None:
        """Run the queued work, wait at most ``timeout`` seconds for answers, close the bridge and end the thread. Waits
        for sends without a listener, too: messages unwritten at the end of the process are lost."""
        with self._changed:
            self._stop_deadline = time.monotonic() + timeout if not self._ending else self._stop_deadline
            self._ending = True
            self._changed.notify_all()
        if not self.here:
            self._thread.join()

    def _raise_ended(self) -> None:
        if self._death is not None:
            died = BackgroundTaskFailed(f"the thread of the transport ended: {self._death!r}")
            raise StatusError(Status.PLATFORM, str(died)) from self._death
        if self._ending:
            raise StatusError(Status.NULL_ARG, "the transport was destroyed")
        if not self._thread.is_alive():  # a forked process has no threads of its parent
            raise StatusError(Status.PLATFORM, "the transport was made in another process: make one here")

    # --- the loop's thread: sending --------------------------------------------------------------------------

    def send(self, batch: MessageBatch, settled: SendListener | None) -> None:
        """Send one message; for :meth:`call`.

        :raises PublishError: the bridge refuses it, or has lost its connection for good
        """
        if self._closed is not None:
            raise self._closed
        self.check(batch)
        if not self.bridge.send(batch, self._token):
            raise _BridgeFull
        if settled is not None:
            self._flights[self._token] = PendingSend(settled, time.monotonic() + self._answer_timeout)
            if self._silent and len(self._flights) > _MAX_REMEMBERED:
                self._settle(next(iter(self._flights)), None)
        self._token += 1
        self._outstanding_acks += 1

    @property
    def _silent(self) -> bool:
        return self.bridge.capabilities.ack is Ack.NONE

    def check(self, batch: MessageBatch) -> None:
        """Check whether the bridge accepts this message, without sending it; for :meth:`call`.

        :raises PublishError: why the bridge rejects it
        """
        if bad := self.bridge.prepare(batch).rejected:
            raise bad[0][1]

    def request_bridge(self) -> RequestBridge:
        """The bridge's requests and replies; for :meth:`call`.

        :raises StatusError: NOT_IMPLEMENTED if it has none
        """
        if self.requests is None:
            self.requests = self.bridge.requests()
        if self.requests is None:
            raise StatusError(Status.NOT_IMPLEMENTED, f"{self.bridge!r} has no inboxes")
        return self.requests

    # --- the loop's thread: the loop -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.bridge.open()
        except BaseException as error:  # noqa: BLE001 - goes to the caller
            self.bridge.close()
            self._end(error)
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        cause: BaseException | None = None
        try:
            self._loop()
        except BaseException as e:
            cause = e
            logger.exception("the thread of %r ended", self.bridge)
        finally:
            self.bridge.close()
            self._end(cause)

    def _loop(self) -> None:
        delays, polled_at = _POLL.delays(), time.monotonic()
        while True:
            stalled = self._do_work()
            busy = self._receive() | self._receive_requests()
            self._expire(polled_at)  # as of before the poll: see contracts/standstill
            polled_at = time.monotonic()
            with self._changed:
                if self._ending and not self._work and self._all_answered():
                    return
                if busy or (self._work and not stalled):
                    delays.reset()
                    continue
                due = self._flights or self.receivers or stalled or self._ending
                if self._changed.wait(delays.next() if due else _IDLE):
                    delays.reset()

    def _all_answered(self) -> bool:
        """Whether all sends are answered, or no answer can arrive, or the stop deadline has passed."""
        no_more = self._outstanding_acks <= 0 or self._silent or self._closed is not None
        return no_more or time.monotonic() >= self._stop_deadline

    def _do_work(self) -> bool:
        worked = False
        while self._work:
            work = self._work[0]
            try:
                self._working = True
                result = work.call()
            except _BridgeFull:
                if not self._ending and time.monotonic() < work.deadline:
                    return True
                error = StatusError(Status.TIMEOUT, f"the transport accepted no message for {self._call_timeout:g} s")
                work.future.set_exception(error)
            except MamaError as e:
                work.future.set_exception(e)
            else:
                worked = True
                work.future.set_result(result)
            finally:
                self._working = False
            self._work.popleft()
        if worked:
            self.bridge.flush()
        return False

    def _receive(self) -> bool:
        polled = self.bridge.poll(0.0)
        for acks in polled.acks:
            self._outstanding_acks -= int((acks.tokens >= self._outstanding_from).sum())
            sequences = None if acks.sequences is None else acks.sequences.tolist()
            if not self._flights:
                continue
            for i, token in enumerate(acks.tokens.tolist()):
                if token in self._flights:
                    outcome = SendOutcome(acks.stream, None if sequences is None else sequences[i])
                    self._settle(token, None if self._silent else outcome)
        for refusals in polled.refusals:
            self._outstanding_acks -= int((refusals.tokens >= self._outstanding_from).sum())
            for token in refusals.tokens.tolist():
                self._settle(token, refusals.error)
        for event in polled.events:
            self._on_bridge_event(event)
        return bool(polled)

    def _receive_requests(self) -> bool:
        messages = self.requests.received() if self.requests is not None else []
        for message in messages:
            receive = self.receivers.get(message.topic if message.inbox is None else message.inbox)
            if receive is not None:
                receive(message)
        return bool(messages)

    def _on_bridge_event(self, event: BridgeEvent) -> None:
        if event.kind is EventKind.CLOSED:
            self._closed = event.error or Rejected(event.info)
        if event.kind in (EventKind.CLOSED, EventKind.DISCONNECTED):
            self._outstanding_acks, self._outstanding_from = 0, self._token
            for token in list(self._flights):
                self._settle(token, OutcomeUnknown(event.info))
        self._on_event(event)

    def _expire(self, now: float) -> None:
        while self._flights:
            token, sent = next(iter(self._flights.items()))
            if now < sent.deadline:
                return
            self._outstanding_acks -= 1
            self._settle(token, None if self._silent else AckTimeout(f"no answer within {self._answer_timeout:g} s"))

    def _settle(self, token: int, outcome: SendOutcome | PublishError | None) -> None:
        sent = self._flights.pop(token, None)  # None: no listener, or already settled
        if sent is not None:
            sent.settled(outcome)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ending = self._over = True
            self._death = error
            work, self._work = self._work, deque()
        for item in work:
            item.future.set_exception(ClientClosed(f"the transport ended: {error}" if error else "it was destroyed"))
        for token in list(self._flights):
            self._settle(token, Stopped("the transport was destroyed" if error is None else f"it ended: {error}"))


def as_status(error: MamaError) -> StatusError:
    """Convert an error of a bridge: the nearest MAMA status with the middleware's text."""
    if isinstance(error, StatusError):
        return error
    if isinstance(error, PublishError):
        return StatusError(status_of(error), text_of(error))
    return StatusError(Status.PLATFORM, str(error))


def text_of(error: PublishError) -> str:
    """The middleware's error number, if any, and its text."""
    return f"{error.code}: {error.info}" if error.code else error.info
