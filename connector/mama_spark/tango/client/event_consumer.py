"""Event consumer of one subscriber: executes the actions of its state machine and reports their results to it.

The consumer owns the sockets, the connections, the clock and four kinds of threads: one receives
(:mod:`~mama_spark.tango.client.zmq_event_receiver`), one checks heartbeats and confirms subscriptions (the
KeepAliveThread of cppTango), some make calls, and one runs callbacks if there are any. Decisions are made in
:mod:`~mama_spark.tango.client.subscription_machine` and :mod:`~mama_spark.tango.events.sequence_tracker`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError
from mama_spark.contracts.standstill import HEARTBEAT_OVERRUN, stood_still

from ..errors import DevFailed, ServerAway, TangoError
from . import subscription_states
from .device_proxy import DeviceConnectionPool
from .event_dispatcher import EventDispatcher
from .keep_alive import Timeouts
from .subscription import EventDelivery, SubscriberCounts, Subscription
from .subscription_calls import NO_COMMAND, SubscriptionCalls, errors_of, frames_of
from .subscription_events import SubscriptionEvent, SubscriptionEventKind
from .subscription_machine import SubscriptionMachine
from .subscription_states import Action, NegotiatedChannel, SubscriptionRequest, SubscriptionState
from .zmq_event_receiver import ChannelConnections, ZmqEventReceiver

logger = logging.getLogger(__name__)

_CALL_THREADS = 4
_STOP_TIMEOUT, _MAX_SLEEP = 10.0, 3600.0


class EventConsumer:
    """Executes the subscriptions of one subscriber; see the module. Its parameters are those of
    :class:`~mama_spark.tango.client.subscriber.TangoSubscriber`.

    :ivar delivery: queues; ``connections``: those of the channels
    :ivar is_open: :meth:`start` was called and :meth:`close` was not
    """

    def __init__(
        self,
        *,
        limit: int,
        max_bytes: int,
        hwm: int | None,
        timeouts: Timeouts | None,
        timeout: float,
        report_availability: bool,
        report_causes: bool,
    ) -> None:
        self._report_availability, self._report_causes = report_availability, report_causes
        self._timeout = timeout
        self._lock = threading.Lock()
        self.delivery = EventDelivery(self._lock, limit, max_bytes)
        self._machine = SubscriptionMachine(timeouts)
        self._dispatcher = EventDispatcher()
        self._subscriptions: dict[int, Subscription] = {}
        self.connections = ChannelConnections(hwm)
        self._calls = SubscriptionCalls(DeviceConnectionPool(timeout))
        self._receiver = ZmqEventReceiver(self, hwm=self.connections.hwm)
        self._wakeup = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._call_pool: ThreadPoolExecutor | None = None
        self.closed = self.is_open = False

    def start(self) -> None:
        """Open the sockets and start the threads; may be called twice."""
        if self._call_pool is None:
            self._call_pool, self.is_open = ThreadPoolExecutor(_CALL_THREADS, "tango-calls"), True
            self._receiver.start()
            self._threads["keep-alive"] = _started("tango-keep-alive", self._keep_alive)

    def close(self) -> None:
        """Cancel all subscriptions and stop all threads; may be called twice. Received events stay in their queues."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            for id in list(self._subscriptions):
                self._cancel(id)
        if self._call_pool is None:
            return
        self._wakeup.set()
        self._calls.close()
        self._call_pool.shutdown(wait=True, cancel_futures=True)
        self._receiver.close()
        self.delivery.close()
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(_STOP_TIMEOUT)
        self._call_pool, self.is_open = None, False

    def add(self, subscriptions: Sequence[Subscription], *, read: bool, raises_errors: bool) -> None:
        """Start to negotiate subscriptions; ``read``: deliver the value of each attribute before events;
        ``raises_errors``: the caller raises errors of the first negotiation, so they are not delivered as events."""
        requests = [
            SubscriptionRequest(str(s.device), s.device.device, s.attribute, s.event, read) for s in subscriptions
        ]
        with self._lock:
            ids, actions = self._machine.subscribe(requests)
            for subscription, id in zip(subscriptions, ids, strict=True):
                subscription.id, subscription.raises_errors = id, raises_errors
                self._subscriptions[id] = subscription
            if any(s.callback is not None for s in subscriptions) and "callbacks" not in self._threads:
                self._threads["callbacks"] = _started("tango-callbacks", self.delivery.run_callbacks)
            self._execute(actions)
        self._wakeup.set()

    def cancel(self, subscription: Subscription) -> None:
        """Cancel a subscription, and discard its waiting events; may be called twice."""
        with self._lock:
            self._cancel(subscription.id)
        if not self.closed:
            subscription.queue.forget(subscription)

    def _cancel(self, id: int) -> None:
        subscription = self._subscriptions.get(id)
        if subscription is None:
            return
        subscription.cancelled = True
        self._execute(self._machine.cancel(id))
        self.delivery.end(subscription)
        del self._subscriptions[id]
        subscription.ready.set()

    @property
    def subscriptions(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions.values())

    def state(self, subscription: Subscription) -> SubscriptionState:
        with self._lock:
            return self._machine.state(subscription.id)

    def topic(self, subscription: Subscription) -> str | None:
        with self._lock:
            negotiated = self._machine.negotiated(subscription.id)
        return None if negotiated is None else negotiated.topic

    def interface_changed(self) -> None:
        with self._lock:
            self._machine.on_interface_changed(time.monotonic())
        self._wakeup.set()

    def check_losses(self) -> None:
        """See :meth:`~mama_spark.tango.client.subscriber.TangoSubscriber.check_losses`."""
        with self._lock:
            states = {id: self._machine.state(id) for id in self._subscriptions}
            connected = [s for s in self._subscriptions.values() if states[s.id] is SubscriptionState.CONNECTED]
            found = [(s, self._machine.negotiated(s.id)) for s in connected]
        for sent in self._calls.ask_servers((s, n.topic) for s, n in found if n):
            self._receiver.execute(partial(self._compare, sent))
        self._receiver.wait(self._timeout)

    def _compare(self, sent: dict[bytes, int] | list[list[bytes]]) -> None:
        """Deliver the losses that a server's answer shows. Called in the receiving thread."""
        dispatcher, now = self._dispatcher, time.time_ns()
        if isinstance(sent, dict):
            self.delivery.deliver(dispatcher.check_counters(sent, now))
        else:
            self.delivery.deliver(dispatcher.check_values(sent, now))

    @property
    def counts(self) -> SubscriberCounts:
        delivery = self.delivery
        return SubscriberCounts(
            replace(self._dispatcher.counts), delivery.dropped, delivery.callback_errors, self.connections.reconnects
        )

    # --- actions of the state machine: the lock is held, so that they are executed in the order of its decisions ---

    def _execute(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case subscription_states.Negotiate():
                    self._submit(self._negotiate, action)
                case subscription_states.ReadValue():
                    self._submit(self._read, action)
                case subscription_states.ConfirmSubscription():
                    self._submit(self._confirm, action)
                case subscription_states.Connect():
                    self.connections.connect(self._receiver, action, time.monotonic())
                case subscription_states.Disconnect():
                    self.connections.disconnect(self._receiver, action)
                case subscription_states.SubscribeTopic(topic, id):
                    subscription, frame = self._subscriptions[id], topic.encode("latin-1")
                    if self._dispatcher.add(frame, subscription.event, subscription):
                        self._receiver.subscribe(frame)
                case subscription_states.UnsubscribeTopic(topic, id):
                    if self._dispatcher.remove(frame := topic.encode("latin-1"), self._subscriptions[id]):
                        self._receiver.unsubscribe(frame)
                case subscription_states.MarkRestarted():
                    self._dispatcher.mark_restarted(topic.encode("latin-1") for topic in action.topics)
                case subscription_states.ReportError() if not self._subscriptions[action.id].raises_errors:
                    self._subscriptions[action.id].report(SubscriptionEventKind.ERROR, action.errors)
                case subscription_states.ReportAvailability() if self._report_availability and (
                    self._report_causes or not action.again
                ):
                    online = SubscriptionEventKind.ONLINE if action.online else SubscriptionEventKind.OFFLINE
                    self._subscriptions[action.id].report(online, action.errors or None)

    def _submit(self, call: Callable[[Any], None], action: Action) -> None:
        def run() -> None:
            try:
                call(action)
            except Exception as error:
                logger.exception("the action %s of a Tango subscriber failed", action)
                self.on_death(error)

        if self._call_pool is not None and not self.closed:
            with contextlib.suppress(RuntimeError):  # close() has shut down the pool
                self._call_pool.submit(run)

    # --- actions that make calls, in the threads of the pool ---

    def _negotiate(self, action: subscription_states.Negotiate) -> None:
        with self._lock:
            found = [self._subscriptions[id] for id in action.ids if id in self._subscriptions]
        if not found:
            return
        results: Sequence[NegotiatedChannel | MamaError]
        try:
            results = self._calls.negotiate(found[0].device, [(s.attribute, s.event) for s in found])
        except Exception as error:  # a defect with one device must not end the other subscriptions
            logger.exception("the negotiation of %s failed", found[0])
            results = [TangoError(f"{type(error).__name__}: {error}")] * len(found)
        with self._lock:
            for subscription, result in zip(found, results, strict=True):
                self._negotiation_ended(subscription, result)
        self._wakeup.set()

    def _negotiation_ended(self, subscription: Subscription, result: NegotiatedChannel | MamaError) -> None:
        now = time.monotonic()
        subscription.failure = None if isinstance(result, NegotiatedChannel) else result
        if isinstance(result, NegotiatedChannel):
            subscription.idl, subscription.raises_errors = result.idl, False
            actions = self._machine.on_negotiated(now, subscription.id, result)
        else:
            actions = self._machine.on_negotiation_failed(now, subscription.id, errors_of(result))
        if any(isinstance(action, subscription_states.ReadValue) for action in actions):
            self.delivery.hold(subscription)
        else:
            subscription.ready.set()
        self._execute(actions)

    def _read(self, action: subscription_states.ReadValue) -> None:
        with self._lock:
            subscription, negotiated = self._subscriptions.get(action.id), self._machine.negotiated(action.id)
            settled = self.connections.settled_at(time.monotonic())
        if subscription is None or negotiated is None:
            return  # cancelled
        self._receiver.wait(self._timeout)
        time.sleep(max(0.0, settled - time.monotonic()))
        kind, frames, errors = action.kind, None, None
        try:
            result = self._calls.read(subscription.device, subscription.attribute, subscription.event, subscription.idl)
            frames = frames_of(negotiated.topic, result)
        except MamaError as error:  # the value cannot be encoded as an event
            kind, errors = SubscriptionEventKind.ERROR, errors_of(error)
        with self._lock:
            # Time of day: stamps events.
            event = SubscriptionEvent(subscription, kind, time.time_ns(), frames, 0, errors)
            self.delivery.release(subscription, [event])
        if frames is not None:
            self._receiver.execute(partial(self._dispatcher.losses.value_was_read, frames))
        subscription.ready.set()

    def _confirm(self, action: subscription_states.ConfirmSubscription) -> None:
        on_failed = self._machine.on_confirmation_failed
        with self._lock:
            found = next((self._subscriptions[id] for id in action.ids if id in self._subscriptions), None)
            if found is None:  # all were cancelled meanwhile; the channel may have new subscriptions
                self._execute(on_failed(time.monotonic(), action.channel, (), unreachable=True, unsupported=False))
                return
        try:
            refused = self._calls.confirm(found.device, action.confirmations)
        except MamaError as error:
            unreachable = isinstance(error, ServerAway)
            unsupported = isinstance(error, DevFailed) and error.reason == NO_COMMAND
            with self._lock:
                now, errors = time.monotonic(), errors_of(error)
                actions = on_failed(now, action.channel, errors, unreachable=unreachable, unsupported=unsupported)
                self._execute(actions)
        else:
            answers = {id: refused.get(one) for id, one in zip(action.ids, action.confirmations, strict=True)}
            errors_by_id = {id: errors_of(error) for id, error in answers.items() if error}
            with self._lock:
                for id in answers.keys() & self._subscriptions.keys():
                    self._subscriptions[id].failure = answers[id]
                self._execute(self._machine.on_confirmed(time.monotonic(), action.channel, errors_by_id))
        self._wakeup.set()

    # --- the keep-alive thread ---

    def _keep_alive(self) -> None:
        due = float("inf")
        try:
            while not self.closed:
                self._wakeup.clear()
                with self._lock:
                    was_stopped = stood_still(time.monotonic(), due, HEARTBEAT_OVERRUN)
                    if not was_stopped:
                        self._execute(self._machine.tick(time.monotonic()))
                    due = float("inf") if was_stopped else self._machine.next_deadline()
                if was_stopped:  # let the receiver process waiting heartbeats before any is reported missing
                    time.sleep(HEARTBEAT_OVERRUN)
                else:
                    self._wakeup.wait(min(max(0.0, due - time.monotonic()), _MAX_SLEEP))
        except Exception as error:
            logger.exception("the keep-alive thread of a Tango subscriber failed")
            self.on_death(error)

    # --- EventSink, in the receiving thread ---

    def on_events(self, messages: Sequence[Sequence[bytes]], received: int) -> None:
        self.delivery.deliver(self._dispatcher.dispatch(messages, received))

    def on_heartbeats(self, topics: set[bytes]) -> None:
        with self._lock:
            for channel in self.connections.with_heartbeats(topics):
                self._execute(self._machine.on_heartbeat(time.monotonic(), channel))
        self._wakeup.set()

    def on_disconnected(self, heartbeat_endpoint: str) -> None:
        with self._lock:
            for channel in self.connections.at(heartbeat_endpoint):
                self._execute(self._machine.on_disconnected(time.monotonic(), channel))
        self._wakeup.set()

    def on_death(self, error: BaseException) -> None:
        """Report that a thread failed: close the queues and raise the error in waiting callers."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
            self.delivery.close(error)
            for subscription in subscriptions:
                subscription.failure = subscription.failure or BackgroundTaskFailed(f"the subscriber failed: {error}")
                subscription.ready.set()


def _started(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
