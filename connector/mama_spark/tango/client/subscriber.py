"""Subscriptions to Tango events (RFC 12), in pure Python.

    with TangoSubscriber() as subscriber:
        subscriber.subscribe("tango://db:10000/sys/tg_test/1", "double_scalar", "change")
        for notice in subscriber.take(1000, timeout=1.0):
            print(notice.kind, notice.value.read)

What is decided is in :mod:`~mama_spark.tango.client.subscription_machine` and :mod:`~mama_spark.tango.events.counters`;
this is threads, sockets and the clock. One thread receives, one looks at heartbeats and confirms, a few make calls, and
one runs callbacks when there are any.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from mama_spark.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError

from ..errors import CallLost, DevFailed, ServerAway, TangoError
from ..events.batch_decoder import BatchDecoder
from ..giop.ior import parse_device
from ..types import EVENT_NAMES, DevError, EventType
from . import subscription_states
from .channels import ZmqEventReceiver
from .delivery import EventDelivery
from .device_connections import NO_COMMAND, DeviceConnectionPool, NegotiatedSubscription, errors_of, frames_of
from .dispatcher import EventDispatcher
from .event_queue import OCTETS
from .subscription import Callback, SubMode, SubscriberCounts, Subscription
from .subscription_events import Batch, SubscriptionEvent, SubscriptionEventKind, decode_notices
from .subscription_machine import SubscriptionMachine, channel_key
from .subscription_states import Action, SubscriptionRequest, SubscriptionState, Timeouts

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_WORKERS = 4
_STOP_TIMEOUT = 10.0
_ENDLESS = 3600.0  # the longest sleep, where nothing is to be done
_STANDSTILL = 0.5  # seconds by which the clock is ahead of its thread when this process was stopped, or had no CPU
_HWM_VARIABLE = "TANGO_EVENT_BUFFER_HWM"
_DEFAULT_HWM = 1000
_ATTRIBUTE = re.compile(r"[!\"$-.0-~\xa1-\xff]+")
#: seconds until a subscription has reached the publisher: on a new connection, and on one that stands
_SETTLE_NEW, _SETTLE = 0.02, 0.001


class TangoSubscriber:
    """Subscriptions of one process. Opened by ``with`` or :meth:`start`; all methods are for any thread.

    :param tango_host: ``host:port`` of the database, for names without; the variable ``TANGO_HOST`` otherwise
    :param limit: notices that wait to be taken at most, for :meth:`take` and for callbacks each (TG-44)
    :param octets: memory that these may take, about, and the queue of a subscription; 0: no limit
    :param hwm: high-water mark of the socket; None: ``TANGO_EVENT_BUFFER_HWM``, or what the server says
    :param times: seconds of heartbeats, confirmation and retries
    :param timeout: seconds of a call
    :param tell_states: also tell when servers come and go (ONLINE, OFFLINE)
    """

    def __init__(
        self,
        tango_host: str | None = None,
        *,
        limit: int = 1_000_000,
        octets: int = OCTETS,
        hwm: int | None = None,
        times: Timeouts | None = None,
        timeout: float = 3.0,
        tell_states: bool = False,
    ) -> None:
        self.tango_host = tango_host or os.environ.get("TANGO_HOST")
        self._hwm = hwm
        self.hwm = hwm or _DEFAULT_HWM  #: of the last connection
        self._tell_states = tell_states
        self._timeout = timeout
        self._lock = threading.Lock()
        self._delivery = EventDelivery(self._lock, limit, octets)
        self.inbox = self._delivery.inbox
        self._lives = SubscriptionMachine(times)
        self._routes = EventDispatcher()
        self._known: dict[int, Subscription] = {}
        self._beats: dict[bytes, str] = {}  # topic -> channel
        self._endpoints: dict[str, str] = {}  # channel -> where its heartbeats come from
        self._hwms: dict[str, int] = {}
        self._fresh = 0.0  # when the last connection was made
        self._desk = DeviceConnectionPool(timeout)
        self._channels = ZmqEventReceiver(self, hwm=hwm or _DEFAULT_HWM)
        self._reconnects = 0
        self._wake = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._decoder = BatchDecoder()
        self._decoding = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._pool else "not open"
        return f"<TangoSubscriber {state}, {self._lives!r}, {self.inbox!r}>"

    # --- open and close ---

    def start(self) -> Self:
        """:raises ClientClosed: it was closed"""
        if self._closed:
            raise ClientClosed("this subscriber was closed")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, "tango-calls")
            self._channels.start()
            self._spawn("tango-keeper", self._keep)
        return self

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    def close(self) -> None:
        """Cancel all, end all threads. Harmless when it is closed. What was received can still be taken."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for id in list(self._known):
                self._cancel(id)
        if self._pool is None:
            return
        self._wake.set()
        self._desk.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._channels.close()
        self._delivery.close()
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(_STOP_TIMEOUT)
        self._pool = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)

    # --- subscriptions ---

    def subscribe(
        self,
        device: str,
        attribute: str | None = None,
        event: EventType | str = EventType.CHANGE,
        *,
        mode: SubMode = SubMode.SYNC_READ,
        callback: Callback | None = None,
        queue: int | None = None,
    ) -> Subscription:
        """Subscribe to one event of one attribute (TG-25, TG-27).

        :param device: its name, ``[tango://host:port/]domain/family/member[/attribute][#dbase=no]``
        :param attribute: where the name does not tell it; none for changes of the interface
        :param event: also as topics call it, ``change``, ``user_event``
        :param callback: called with each notice, in a thread for callbacks. What it raises is logged and counted.
        :param queue: notices that wait for :meth:`Subscription.get_events`: the last so many; 0: all. Without callback
            and queue they wait for :meth:`take`.
        :raises BadAddress: there is no such name of a device
        :raises ConfigError: callback and queue, or no attribute
        :raises MamaError: in the modes that raise, what the server or the way to it answered
        """
        return self.subscribe_many([(device, attribute, event)], mode=mode, callback=callback, queue=queue)[0]

    def subscribe_many(
        self,
        wanted: Iterable[tuple[str, str | None, EventType | str]],
        *,
        mode: SubMode = SubMode.STATELESS,
        callback: Callback | None = None,
        queue: int | None = None,
    ) -> list[Subscription]:
        """As :meth:`subscribe`, for many at once: devices side by side, the attributes of one in turn.

        :raises MamaError: in the modes that raise: the first failure; then all of these are cancelled
        """
        self._check_open()
        if callback is not None and queue is not None:
            raise ConfigError("a subscription has a callback or a queue")
        made = [self._made(*one, callback, queue) for one in wanted]
        lives = [SubscriptionRequest(str(s.device), s.device.device, s.attribute, s.event, mode.reads) for s in made]
        with self._lock:
            ids, actions = self._lives.subscribe(lives)
            for subscription, id in zip(made, ids, strict=True):
                subscription.id, subscription.muted = id, mode.raises
                self._known[id] = subscription
            if callback is not None and "tango-callbacks" not in self._threads:
                self._spawn("tango-callbacks", self._delivery.call_back)
            self._do(actions)
        self._wake.set()
        if mode.waits:
            self._wait(made, mode)
        return made

    def _made(
        self, device: str, attribute: str | None, event: EventType | str, callback: Callback | None, queue: int | None
    ) -> Subscription:
        name = parse_device(device, self.tango_host)
        kind = event if isinstance(event, EventType) else EVENT_NAMES.get(event.lower())
        if kind is None:
            raise ConfigError(f"no event of Tango: {event!r}; there are {', '.join(EVENT_NAMES)}")
        found = (attribute or name.attribute or "").lower()
        if kind is EventType.INTERFACE_CHANGE:
            found = ""
        elif not _ATTRIBUTE.fullmatch(found):
            raise ConfigError(f"no name of an attribute of {device}: {found[:200]!r}")
        inbox = self._delivery.inbox_for(callback, queue)
        return Subscription(self, replace(name, attribute=None), found, kind, inbox, callback)

    def _wait(self, made: Sequence[Subscription], mode: SubMode) -> None:
        deadline = time.monotonic() + 10 * self._timeout + 0.05 * len(made)
        failure: MamaError | None = None
        for subscription in made:
            if not subscription.answered.wait(max(0.0, deadline - time.monotonic())):
                failure = failure or CallLost(f"no answer about {subscription}")
            failure = failure or subscription.failure
        if failure is not None and mode.raises:
            for subscription in made:
                self.unsubscribe(subscription)
            raise failure

    def unsubscribe(self, subscription: Subscription) -> None:
        """See :meth:`Subscription.unsubscribe`."""
        with self._lock:
            self._cancel(subscription.id)
        if not self._closed:
            subscription.inbox.forget(subscription)

    def _cancel(self, id: int) -> None:
        subscription = self._known.get(id)
        if subscription is None:
            return
        subscription.cancelled = True
        self._do(self._lives.cancel(id))
        self._delivery.end(subscription)
        del self._known[id]
        subscription.answered.set()

    def _check_open(self) -> None:
        if self._closed or self._pool is None:
            raise ClientClosed("this subscriber is not open")
        if self.inbox.closed:
            self.inbox.take(0)
            raise BackgroundTaskFailed("the subscriber ended")

    @property
    def subscriptions(self) -> list[Subscription]:
        """Those that were not cancelled."""
        with self._lock:
            return list(self._known.values())

    def state(self, subscription: Subscription) -> SubscriptionState:
        with self._lock:
            return self._lives.state(subscription.id)

    def topic(self, subscription: Subscription) -> str | None:
        with self._lock:
            found = self._lives.agreement(subscription.id)
        return None if found is None else found.topic

    # --- what came ---

    def take(self, limit: int = 10_000, timeout: float | None = 0.0) -> list[SubscriptionEvent]:
        """Notices of the subscriptions without callback and queue, in the order in which they came.

        :param timeout: seconds to wait for the first one; None: as long as it takes
        :raises BackgroundTaskFailed: a thread ended with an error, and everything before it was taken
        """
        return self.inbox.take(limit, timeout)

    def take_batch(self, limit: int = 10_000, timeout: float | None = 0.0) -> Batch:
        """As :meth:`take`, decoded into columns."""
        notices = self.inbox.take(limit, timeout)
        with self._decoding:
            return decode_notices(notices, self._decoder)

    @property
    def counts(self) -> SubscriberCounts:
        with self._lock:
            dropped, failed = self._delivery.dropped(list(self._known.values())), self._delivery.callback_errors
            return SubscriberCounts(replace(self._routes.counts), dropped, failed, self._reconnects)

    # --- the machine's actions; with the lock held, so that they are done in its order ---

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case subscription_states.Negotiate():
                    self._submit(self._negotiate, action)
                case subscription_states.ReadValue():
                    self._submit(self._read, action)
                case subscription_states.ConfirmSubscription():
                    self._submit(self._confirm, action)
                case subscription_states.Connect():
                    self._connect(action)
                case subscription_states.Disconnect():
                    self._disconnect(action)
                case subscription_states.SubscribeTopic():
                    self._listen(action)
                case subscription_states.UnsubscribeTopic():
                    self._unlisten(action)
                case subscription_states.Restarted():
                    self._routes.restarted(topic.encode("latin-1") for topic in action.topics)
                case subscription_states.ReportError() if not self._known[action.id].muted:
                    self._put(self._known[action.id], SubscriptionEventKind.ERROR, detail=action.errors)
                case subscription_states.ReportAvailability() if self._tell_states:
                    self._put(
                        self._known[action.id],
                        SubscriptionEventKind.ONLINE if action.online else SubscriptionEventKind.OFFLINE,
                    )

    def _connect(self, action: subscription_states.Connect) -> None:
        self._reconnects += action.again
        self._endpoints[action.channel] = action.pair.heartbeat
        for topic in action.heartbeats:
            self._beats[topic.encode("latin-1")] = action.channel
        self.hwm = self._hwm or _environment_hwm() or self._hwms.get(action.channel, _DEFAULT_HWM)
        self._fresh = time.monotonic()
        self._channels.connect(action.pair, action.heartbeats, self.hwm)

    def _disconnect(self, action: subscription_states.Disconnect) -> None:
        for topic in action.heartbeats:
            self._beats.pop(topic.encode("latin-1"), None)
        self._endpoints.pop(action.channel, None)
        self._channels.disconnect(action.pair, action.heartbeats)

    def _listen(self, action: subscription_states.SubscribeTopic) -> None:
        subscription, topic = self._known[action.id], action.topic.encode("latin-1")
        if self._routes.add(topic, subscription.event, subscription):
            self._channels.listen(topic)

    def _unlisten(self, action: subscription_states.UnsubscribeTopic) -> None:
        topic = action.topic.encode("latin-1")
        if self._routes.remove(topic, self._known[action.id]):
            self._channels.unlisten(topic)

    def _put(
        self,
        subscription: Subscription,
        kind: SubscriptionEventKind,
        frames: list[bytes] | None = None,
        detail: tuple[DevError, ...] | None = None,
    ) -> None:
        subscription.inbox.put([SubscriptionEvent(subscription, kind, time.time_ns(), frames, 0, detail)])

    def _submit(self, work: Callable[[T], None], action: T) -> None:
        def run() -> None:
            try:
                work(action)
            except Exception as error:
                LOG.exception("%s failed", action)
                self.on_death(error)

        if self._pool is not None and not self._closed:
            with contextlib.suppress(RuntimeError):  # shut down meanwhile
                self._pool.submit(run)

    # --- calls, in the threads of the pool ---

    def _negotiate(self, action: subscription_states.Negotiate) -> None:
        with self._lock:
            found = [self._known[id] for id in action.ids if id in self._known]
        if not found:
            return
        answers: Sequence[NegotiatedSubscription | MamaError]
        try:
            answers = self._desk.negotiate(found[0].device, [(s.attribute, s.event) for s in found])
        except Exception as error:  # nobody else's subscription shall end by it
            LOG.exception("negotiating %s", found[0])
            answers = [TangoError(f"{type(error).__name__}: {error}")] * len(found)
        with self._lock:
            for subscription, answer in zip(found, answers, strict=True):
                self._answer(subscription, answer)
        self._wake.set()

    def _answer(self, subscription: Subscription, answer: NegotiatedSubscription | MamaError) -> None:
        now = time.monotonic()
        if isinstance(answer, NegotiatedSubscription):
            subscription.idl, subscription.muted = answer.info.device_idl, False
            self._hwms[channel_key(answer.agreement.channel)] = max(answer.info.hwm, 1)
            actions = self._lives.agreed(now, subscription.id, answer.agreement)
        else:
            subscription.failure = subscription.failure or answer
            actions = self._lives.failed(now, subscription.id, errors_of(answer))
        reads = any(isinstance(action, subscription_states.ReadValue) for action in actions)
        if reads:
            self._delivery.hold(subscription)
        else:
            subscription.answered.set()
        self._do(actions)

    def _read(self, action: subscription_states.ReadValue) -> None:
        with self._lock:
            subscription, agreement = self._known.get(action.id), self._lives.agreement(action.id)
            settled = max(self._fresh + _SETTLE_NEW, time.monotonic() + _SETTLE)
        if subscription is None or agreement is None:
            return  # cancelled
        self._channels.wait(self._timeout)
        time.sleep(max(0.0, settled - time.monotonic()))
        name, idl = subscription.device, subscription.idl
        kind = (
            SubscriptionEventKind.INITIAL
            if action.why is subscription_states.ReadReason.INITIAL
            else SubscriptionEventKind.RESUBSCRIPTION
        )
        frames: list[bytes] | None = None
        errors: tuple[DevError, ...] | None = None
        try:
            found = self._desk.read(name, subscription.attribute, subscription.event, idl)
            frames = frames_of(agreement.topic, found)
        except MamaError as error:  # no value that an event could carry
            kind, errors = SubscriptionEventKind.ERROR, errors_of(error)
        with self._lock:
            self._delivery.release(
                subscription, [SubscriptionEvent(subscription, kind, time.time_ns(), frames, 0, errors)]
            )
        subscription.answered.set()

    def _confirm(self, action: subscription_states.ConfirmSubscription) -> None:
        with self._lock:
            found = next((self._known[id] for id in action.ids if id in self._known), None)
            if found is None:  # all cancelled meanwhile; others may have come
                self._do(self._lives.unconfirmed(time.monotonic(), action.channel, (), away=True, unknown=False))
                return
        try:
            refused = self._desk.confirm(found.device, action.what)
        except MamaError as error:
            away = isinstance(error, ServerAway)
            unknown = isinstance(error, DevFailed) and error.reason == NO_COMMAND
            with self._lock:
                now, errors = time.monotonic(), errors_of(error)
                self._do(self._lives.unconfirmed(now, action.channel, errors, away=away, unknown=unknown))
        else:
            why = {
                id: errors_of(refused[one]) for id, one in zip(action.ids, action.what, strict=True) if one in refused
            }
            with self._lock:
                self._do(self._lives.confirmed(time.monotonic(), action.channel, why))
        self._wake.set()

    # --- threads ---

    def _keep(self) -> None:
        due = float("inf")
        try:
            while not self._closed:
                self._wake.clear()
                with self._lock:
                    stood_still = time.monotonic() - due > _STANDSTILL
                    if not stood_still:
                        self._do(self._lives.tick(time.monotonic()))
                    due = float("inf") if stood_still else self._lives.wake_at()
                if stood_still:  # what came meanwhile is heard before anybody is missed
                    time.sleep(_STANDSTILL)
                else:
                    self._wake.wait(min(max(0.0, due - time.monotonic()), _ENDLESS))
        except Exception as error:
            LOG.exception("the keeper of Tango subscriptions ended")
            self.on_death(error)

    # --- in the thread of the sockets ---

    def on_events(self, messages: Sequence[Sequence[bytes]], received: int) -> None:
        """Events came; called by the sockets."""
        self._delivery.deliver(self._routes.number(messages, received))

    def on_heartbeats(self, topics: set[bytes]) -> None:
        """Heartbeats came; called by the sockets."""
        with self._lock:
            for channel in {self._beats[topic] for topic in topics if topic in self._beats}:
                self._do(self._lives.beat(time.monotonic(), channel))
        self._wake.set()

    def on_lost(self, heartbeat: str) -> None:
        """The connection to an endpoint for heartbeats ended; called by the sockets."""
        with self._lock:
            for channel in [name for name, endpoint in self._endpoints.items() if endpoint == heartbeat]:
                self._do(self._lives.lost(time.monotonic(), channel))
        self._wake.set()

    def on_death(self, error: BaseException) -> None:
        """A thread ended with an error: everybody who waits is told."""
        with self._lock:
            known = list(self._known.values())
            self._delivery.close(known, error)
            for subscription in known:
                subscription.failure = subscription.failure or BackgroundTaskFailed(f"the subscriber ended: {error}")
                subscription.answered.set()


def _environment_hwm() -> int:
    told = os.environ.get(_HWM_VARIABLE, "")
    return int(told) if told.isdecimal() else 0
