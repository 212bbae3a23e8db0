"""State machine of all subscriptions of one subscriber, and of the channels that carry their heartbeats. Pure.

:class:`SubscriptionMachine` takes an event and the current time, and returns the actions to execute (see
:mod:`~mama_spark.tango.client.subscription_states`). A channel stands for one server: its endpoints, its heartbeats and
the confirmation of all subscriptions there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..topics import heartbeat_topics
from ..types import DevError, Severity
from .keep_alive import Timeouts
from .subscription_retries import SubscriptionRetries
from .subscription_states import (
    Action,
    Channel,
    ConfirmSubscription,
    Connect,
    Disconnect,
    MachineEvent,
    MarkRestarted,
    Member,
    Negotiate,
    NegotiatedChannel,
    ReportAvailability,
    ReportError,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    UnsubscribeTopic,
    channel_key,
)


class SubscriptionMachine:
    """The machine; see the module. Methods that change the state return the actions to execute, in order. Reports about
    a cancelled subscription are ignored. ``now`` and deadlines are seconds of a monotonic clock.

    :param timeouts: periods; None: those of cppTango
    :param seed: number from 0 to 1, of the jitter of retries; None: random
    """

    def __init__(self, timeouts: Timeouts | None = None, seed: float | None = None) -> None:
        self.timeouts = timeouts or Timeouts()
        self._retries = SubscriptionRetries(self.timeouts, seed)
        self._subscriptions: dict[int, Member] = {}
        self._channels: dict[str, Channel] = {}
        self._topics: dict[str, dict[int, None]] = {}
        self._newest_id = 0

    def state(self, id: int) -> SubscriptionState:
        """Current state of a subscription; CANCELLED for an unknown id."""
        return self._subscriptions[id].state if id in self._subscriptions else SubscriptionState.CANCELLED

    def negotiated(self, id: int) -> NegotiatedChannel | None:
        """Result of the last negotiation; None before the first one."""
        return self._subscriptions[id].negotiated if id in self._subscriptions else None

    def next_deadline(self) -> float:
        """Time of the next :meth:`tick` that has something to do; infinity if there is none."""
        times = [self._retries.next_time()]
        for channel in self._channels.values():
            times += [channel.next_check] if channel.confirming else [channel.next_check, channel.next_confirm]
        return min(times)

    def subscribe(self, requests: list[SubscriptionRequest]) -> tuple[list[int], list[Action]]:
        """Add subscriptions; returns their ids, and the negotiations to make."""
        added = [Member(id, request) for id, request in enumerate(requests, self._newest_id + 1)]
        self._newest_id += len(added)
        self._subscriptions |= {subscription.id: subscription for subscription in added}
        return [subscription.id for subscription in added], list(_negotiate(added))

    def cancel(self, id: int) -> list[Action]:
        """Remove a subscription. Tango has no message to unsubscribe (TG-38): only the ZeroMQ socket does (TG-39)."""
        subscription = self._subscriptions.pop(id, None)
        if subscription is None:
            return []
        subscription.apply(MachineEvent.CANCEL)
        self._retries.forget(id)
        return list(self._unsubscribe_topic(subscription))

    def on_negotiated(self, now: float, id: int, negotiated: NegotiatedChannel) -> list[Action]:
        """The server accepted a subscription (TG-28, TG-29)."""
        subscription = self._subscriptions.get(id)
        if subscription is None:
            return []
        before = subscription.apply(MachineEvent.NEGOTIATED)
        if subscription.state is SubscriptionState.HEARTBEAT_LOST:
            return []
        missing = self._stale_channel(subscription)
        if missing is not None:
            self._retries.reached(now, missing)
        subscription.recovered()
        self._retries.forget(id)
        actions: list[Action] = []
        old = subscription.negotiated
        if old is not None and old.topic != negotiated.topic:
            actions += self._unsubscribe_topic(subscription)
            old = None
        elif old is not None and channel_key(old.channel) != channel_key(negotiated.channel):
            actions += self._change_server(subscription, old, negotiated)
        subscription.negotiated = negotiated
        actions += self._join_channel(now, subscription, negotiated)
        if old is None:
            self._topics.setdefault(negotiated.topic, {})[id] = None
            actions.append(SubscribeTopic(negotiated.topic, id))
        if before is not SubscriptionState.CONNECTED:
            actions.append(ReportAvailability(id, True))
            actions += subscription.read_value()
        return actions

    def on_negotiation_failed(self, now: float, id: int, errors: tuple[DevError, ...]) -> list[Action]:
        """Postpone the subscription (TG-30). The first error is reported at once, further ones once per check period
        (TG-41, TG-42)."""
        subscription = self._subscriptions.get(id)
        if subscription is None:
            return []
        before = subscription.apply(MachineEvent.NEGOTIATION_FAILED)
        if before in (SubscriptionState.CONNECTED, SubscriptionState.HEARTBEAT_LOST):
            return [ReportError(id, errors)] if before is SubscriptionState.CONNECTED else []
        channel = self._stale_channel(subscription)
        self._retries.failed(now, subscription, channel, errors)
        if channel is not None:  # API_EventTimeout is reported, not this error
            return list(subscription.report_offline(errors))
        return list(subscription.report_error(now, errors, self.timeouts.check))

    def on_heartbeat(self, now: float, channel: str) -> list[Action]:
        """A heartbeat of this channel arrived (TG-36)."""
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        found.last_heartbeat = now
        if not found.stale or found.disconnected:  # after a new connection, HEARTBEAT_LOST members negotiate
            return []
        actions: list[Action] = []
        for id, subscription in found.members.items():
            if subscription.state is SubscriptionState.HEARTBEAT_LOST:
                subscription.apply(MachineEvent.HEARTBEAT)
                subscription.recovered()
                self._retries.forget(id)
                actions.append(ReportAvailability(id, True))
        found.stale = any(one.state is SubscriptionState.RECONNECTING for one in found.members.values())
        found.next_confirm = now  # the server may have ended the subscriptions meanwhile
        return actions

    def on_disconnected(self, now: float, channel: str) -> list[Action]:
        """The heartbeat connection ended. No heartbeat can arrive over it, so heartbeats count as missing at once."""
        found = self._channels.get(channel_key(channel))
        if found is None or found.stale:
            return []
        found.disconnected, found.next_check = True, now + self.timeouts.check
        return list(self._heartbeat_missed(now, found, "the heartbeat connection ended"))

    def on_interface_changed(self, now: float) -> None:
        """A device has other attributes: of one that was removed and added the server has no subscriptions any more,
        until they are confirmed."""
        for channel in self._channels.values():
            channel.next_confirm = now

    def on_confirmed(
        self, now: float, channel: str, refused: Mapping[int, tuple[DevError, ...]] | None = None
    ) -> list[Action]:
        """The server answered a confirmation. Ids that it ``refused`` are reported with its error stacks, and all ids
        are confirmed again at the next check."""
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        wait = min(self.timeouts.check, self.timeouts.confirm) if refused else self.timeouts.confirm
        found.confirming, found.next_confirm = False, min(found.next_confirm, now + wait)
        return [ReportError(id, errors) for id, errors in (refused or {}).items() if id in found.members]

    def on_confirmation_failed(
        self, now: float, channel: str, errors: tuple[DevError, ...], *, unreachable: bool, unsupported: bool
    ) -> list[Action]:
        """The confirmation failed; it is repeated at the next check.

        :param unreachable: the server cannot be reached; no error is reported, since missing heartbeats will be
        :param unsupported: the server has no command to confirm; subscriptions are negotiated again, now and later
        """
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        wait = min(self.timeouts.check, self.timeouts.confirm)
        found.confirming, found.next_confirm = False, min(found.next_confirm, now + wait)
        if unsupported:
            found.can_confirm, found.next_confirm = False, now
        return [] if unsupported or unreachable else [ReportError(id, errors) for id in found.members]

    def tick(self, now: float) -> list[Action]:
        """Check heartbeats, confirm and retry, as far as these are due."""
        actions: list[Action] = []
        for channel in list(self._channels.values()):
            if now >= channel.next_check:
                channel.next_check = now + self.timeouts.check
                if channel.disconnected or now - channel.last_heartbeat > self.timeouts.heartbeat:
                    reason = f"no heartbeat for {now - channel.last_heartbeat:.1f} s"
                    actions += self._heartbeat_missed(now, channel, reason)
            if now >= channel.next_confirm and not channel.confirming:
                actions += self._confirm(now, channel)
        due = self._retries.due(now, self._stale_channel)
        for subscription in due:
            subscription.apply(MachineEvent.RETRY)
        return actions + list(_negotiate(due))

    def _heartbeat_missed(self, now: float, channel: Channel, reason: str) -> Iterator[Action]:
        error = DevError("API_EventTimeout", Severity.ERR, reason, channel.name)
        channel.stale = True
        for subscription in channel.members.values():
            if subscription.state is SubscriptionState.CONNECTED:
                subscription.apply(MachineEvent.HEARTBEAT_MISSED)
                self._retries.heartbeat_missed(now, subscription, channel)
                yield from subscription.report_offline((error,))
            yield from subscription.report_error(now, (error,), self.timeouts.check)

    def _confirm(self, now: float, channel: Channel) -> Iterator[Action]:
        connected = [one for one in channel.members.values() if one.state is SubscriptionState.CONNECTED]
        channel.next_confirm = now + self.timeouts.confirm
        if not connected:
            return
        if channel.can_confirm:
            channel.confirming, channel.next_confirm = True, math.inf  # until it ends
            ids = tuple(subscription.id for subscription in connected)
            yield ConfirmSubscription(channel.name, ids, tuple(one.confirmation for one in connected))
        else:
            yield from _negotiate(connected)

    def _stale_channel(self, subscription: Member) -> Channel | None:
        negotiated = subscription.negotiated
        channel = None if negotiated is None else self._channels.get(channel_key(negotiated.channel))
        return channel if channel is not None and channel.stale else None

    def _join_channel(self, now: float, subscription: Member, negotiated: NegotiatedChannel) -> Iterator[Action]:
        key = channel_key(negotiated.channel)
        channel = self._channels.get(key)
        if channel is None:
            topics = heartbeat_topics(negotiated.channel)
            times = (now, now + self.timeouts.check, now + self.timeouts.confirm)
            channel = self._channels[key] = Channel(key, negotiated.pair, *times, topics)
            yield Connect(key, negotiated.pair, topics, hwm=negotiated.hwm)
        elif channel.stale or channel.pair != negotiated.pair:
            old, channel.pair = channel.pair, negotiated.pair
            channel.stale, channel.disconnected = False, False
            channel.last_heartbeat, channel.next_check = now, now + self.timeouts.check
            channel.can_confirm = True
            if old != negotiated.pair:
                yield Disconnect(key, old, channel.heartbeats)
                found = (member.negotiated for member in channel.members.values())
                yield MarkRestarted(tuple(dict.fromkeys(one.topic for one in found if one is not None)))
            yield Connect(key, negotiated.pair, channel.heartbeats, True, negotiated.hwm)
        channel.members[subscription.id] = subscription

    def _change_server(self, subscription: Member, old: NegotiatedChannel, new: NegotiatedChannel) -> Iterator[Action]:
        """The device runs in another server now, so its counters start again. Only the first subscription of a topic
        marks this."""
        yield from self._leave_channel(subscription, old)
        there = self._channels.get(channel_key(new.channel))
        if there is None or there.members.keys().isdisjoint(self._topics[new.topic]):
            yield MarkRestarted((new.topic,))

    def _unsubscribe_topic(self, subscription: Member) -> Iterator[Action]:
        negotiated = subscription.negotiated
        if negotiated is None:
            return
        subscribed = self._topics.get(negotiated.topic, {})
        subscribed.pop(subscription.id, None)
        if not subscribed:
            self._topics.pop(negotiated.topic, None)
        yield UnsubscribeTopic(negotiated.topic, subscription.id)
        yield from self._leave_channel(subscription, negotiated)

    def _leave_channel(self, subscription: Member, negotiated: NegotiatedChannel) -> Iterator[Action]:
        channel = self._channels.get(channel_key(negotiated.channel))
        if channel is None:
            return
        channel.members.pop(subscription.id, None)
        if not channel.members:
            del self._channels[channel.name]
            yield Disconnect(channel.name, channel.pair, channel.heartbeats)


def _negotiate(subscriptions: list[Member]) -> Iterator[Negotiate]:
    by_device: dict[str, list[int]] = {}
    for subscription in subscriptions:
        by_device.setdefault(subscription.request.full_name, []).append(subscription.id)
    for ids in by_device.values():
        yield Negotiate(tuple(ids))
