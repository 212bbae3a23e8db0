"""The machine behind all subscriptions of one subscriber, and the channels that they come through. Pure.

:class:`SubscriptionMachine` is told what happened and what time it is, and returns what is to be done (see
:mod:`~mama_spark.tango.client.subscription_states`). A channel is what all subscriptions at one server share: its
    endpoints, its heartbeats,
its confirmation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..idl.negotiation import Confirmation, EndpointPair
from ..topics import NO_DATABASE, heartbeat_topics
from ..types import DevError, EventType, Severity
from .subscription_states import (
    TABLE,
    Action,
    ConfirmSubscription,
    Connect,
    Disconnect,
    IllegalTransition,
    MachineEvent,
    Negotiate,
    NegotiatedChannel,
    ReadReason,
    ReadValue,
    ReportAvailability,
    ReportError,
    Restarted,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    Timeouts,
    UnsubscribeTopic,
)


@dataclass(slots=True)
class _Subscription:
    id: int
    wanted: SubscriptionRequest
    state: SubscriptionState = SubscriptionState.NEGOTIATING
    agreement: NegotiatedChannel | None = None
    tries: int = 0
    next_try: float = 0.0
    next_error: float = float("-inf")
    was_read: bool = False

    def step(self, step: MachineEvent) -> SubscriptionState:
        """The state before."""
        before, after = self.state, TABLE[self.state].get(step)
        if after is None:
            raise IllegalTransition(f"{step.name} in {self.state.name}")
        self.state = after
        return before


@dataclass(slots=True)
class _Channel:
    name: str
    pair: EndpointPair
    beat: float
    next_check: float
    next_confirm: float
    heartbeats: tuple[str, str]
    stale: bool = False  #: its connections are to be made anew
    lost: bool = False  #: the one for heartbeats ended
    confirming: bool = False
    confirms: bool = True  #: the server knows how to be confirmed
    members: dict[int, None] = field(default_factory=dict)


def channel_key(channel: str) -> str:
    """The name that a channel has here, however it is spelt."""
    return channel.lower().removesuffix(NO_DATABASE)


class SubscriptionMachine:
    """All subscriptions of one subscriber.

    Every method returns what is to be done, in order. What was cancelled may still be told of: it changes nothing.
    """

    def __init__(self, times: Timeouts | None = None) -> None:
        self.times = times or Timeouts()
        self._lives: dict[int, _Subscription] = {}
        self._channels: dict[str, _Channel] = {}
        self._topics: dict[str, dict[int, None]] = {}
        self._waiting: dict[int, None] = {}  # postponed or late
        self._next = 0

    def __repr__(self) -> str:
        counts = {state: sum(life.state is state for life in self._lives.values()) for state in SubscriptionState}
        told = ", ".join(f"{n} {state.value}" for state, n in counts.items() if n)
        return f"<SubscriptionMachine {told or 'none'}, {len(self._channels)} channels>"

    def __len__(self) -> int:
        return len(self._lives)

    def state(self, id: int) -> SubscriptionState:
        """CANCELLED of all that are not known any more."""
        life = self._lives.get(id)
        return SubscriptionState.CANCELLED if life is None else life.state

    def agreement(self, id: int) -> NegotiatedChannel | None:
        """None before the first one."""
        life = self._lives.get(id)
        return None if life is None else life.agreement

    def wanted(self, id: int) -> SubscriptionRequest | None:
        """None: it was cancelled."""
        life = self._lives.get(id)
        return None if life is None else life.wanted

    def wake_at(self) -> float:
        """When :meth:`tick` has something to do at the latest; infinity: never."""
        times = [self._lives[id].next_try for id in self._waiting]
        for channel in self._channels.values():
            times.append(channel.next_check)
            if not channel.confirming:
                times.append(channel.next_confirm)
        return min(times, default=float("inf"))

    # --- what users want ---

    def subscribe(self, wanted: list[SubscriptionRequest]) -> tuple[list[int], list[Action]]:
        """Numbers for them; negotiations."""
        ids = []
        for one in wanted:
            self._next += 1
            self._lives[self._next] = _Subscription(self._next, one)
            ids.append(self._next)
        return ids, list(self._negotiate(ids))

    def cancel(self, id: int) -> list[Action]:
        """There is no message for it (TG-38): the socket ends listening (TG-39)."""
        life = self._lives.pop(id, None)
        if life is None:
            return []
        life.step(MachineEvent.CANCEL)
        self._waiting.pop(id, None)
        return list(self._leave(life))

    # --- what servers said ---

    def agreed(self, now: float, id: int, agreement: NegotiatedChannel) -> list[Action]:
        """TG-28, TG-29"""
        life = self._lives.get(id)
        if life is None:
            return []
        before = life.step(MachineEvent.AGREED)
        if life.state is SubscriptionState.LATE:
            return []
        life.tries, life.next_error = 0, float("-inf")
        self._waiting.pop(id, None)
        actions: list[Action] = []
        old = life.agreement
        if old is not None and old.topic != agreement.topic:
            actions += self._leave(life)
            old = None
        elif old is not None and channel_key(old.channel) != channel_key(agreement.channel):
            actions += self._moved(life, old, agreement)
        life.agreement = agreement
        actions += self._join(now, life, agreement)
        if old is None:
            self._topics.setdefault(agreement.topic, {})[id] = None
            actions.append(SubscribeTopic(agreement.topic, id))
        if before is not SubscriptionState.CONNECTED:
            actions.append(ReportAvailability(id, True))
            actions += self._reads(life)
        return actions

    def failed(self, now: float, id: int, errors: tuple[DevError, ...]) -> list[Action]:
        """TG-30: put off. Errors come at once, and then with each check as long as it lasts (TG-41, TG-42)."""
        life = self._lives.get(id)
        if life is None:
            return []
        before = life.step(MachineEvent.FAILED)
        if before in (SubscriptionState.CONNECTED, SubscriptionState.LATE):
            return [ReportError(id, errors)] if before is SubscriptionState.CONNECTED else []
        life.next_try = now + min(self.times.retry * 2.0 ** min(life.tries, 30), self.times.retry_max)
        life.tries += 1
        self._waiting[id] = None
        # as long as the heartbeats are missing, that is what is told
        return [] if self._is_silent(life) else list(self._tell(now, life, errors))

    def beat(self, now: float, channel: str) -> list[Action]:
        """A heartbeat of this channel (TG-36)."""
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        found.beat = now
        actions: list[Action] = []
        if not found.stale or found.lost:  # connected anew, or on the way to it: who is late must ask the server
            return actions
        late = [id for id in found.members if self._lives[id].state is SubscriptionState.LATE]
        for id in late:
            life = self._lives[id]
            life.step(MachineEvent.BEAT)
            life.tries, life.next_error = 0, float("-inf")
            self._waiting.pop(id, None)
            actions.append(ReportAvailability(id, True))
        found.stale = any(self._lives[id].state is SubscriptionState.RECONNECTING for id in found.members)
        found.next_confirm = now  # it may have been away for so long that it forgot them
        return actions

    def lost(self, now: float, channel: str) -> list[Action]:
        """The connection for heartbeats ended: none can come any more, so nobody waits for them to be missed."""
        found = self._channels.get(channel_key(channel))
        if found is None or found.stale:
            return []
        found.lost, found.next_check = True, now + self.times.check
        return list(self._missed(now, found, "the connection for heartbeats ended"))

    def confirmed(
        self, now: float, channel: str, refused: Mapping[int, tuple[DevError, ...]] | None = None
    ) -> list[Action]:
        """The confirmation came through.

        :param refused: those that the server did not take, and why: they are told so with each check, and tried again
        """
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        wait = min(self.times.check, self.times.confirm) if refused else self.times.confirm
        found.confirming, found.next_confirm = False, now + wait
        return [ReportError(id, errors) for id, errors in (refused or {}).items() if id in found.members]

    def unconfirmed(
        self, now: float, channel: str, errors: tuple[DevError, ...], *, away: bool, unknown: bool
    ) -> list[Action]:
        """The confirmation failed, and is tried again with the next check.

        :param away: the server cannot be reached: its heartbeats will tell
        :param unknown: the server has no such command: negotiate instead
        """
        found = self._channels.get(channel_key(channel))
        if found is None:
            return []
        found.confirming, found.next_confirm = False, now + min(self.times.check, self.times.confirm)
        if unknown:
            found.confirms = False
            found.next_confirm = now
            return []
        return [] if away else [ReportError(id, errors) for id in found.members]

    # --- what time does ---

    def tick(self, now: float) -> list[Action]:
        """Look at heartbeats, confirm, try again."""
        actions: list[Action] = []
        for channel in list(self._channels.values()):
            if now >= channel.next_check:
                channel.next_check = now + self.times.check
                if channel.lost or now - channel.beat > self.times.late:
                    actions += self._missed(now, channel, f"no heartbeat for {now - channel.beat:.1f} s")
            if now >= channel.next_confirm and not channel.confirming:
                actions += self._confirm(now, channel)
        due = [id for id in self._waiting if now >= self._lives[id].next_try]
        for id in due:
            del self._waiting[id]
            self._lives[id].step(MachineEvent.RETRY)
        return actions + list(self._negotiate(due))

    def _missed(self, now: float, channel: _Channel, why: str) -> Iterator[Action]:
        error = DevError("API_EventTimeout", Severity.ERR, why, channel.name)
        channel.stale = True
        for id in channel.members:
            life = self._lives[id]
            if life.state is SubscriptionState.CONNECTED:
                life.step(MachineEvent.MISSED)
                life.tries, life.next_try = 0, now
                self._waiting[id] = None
                yield ReportAvailability(id, False)
            yield from self._tell(now, life, (error,))

    def _confirm(self, now: float, channel: _Channel) -> Iterator[Action]:
        ids = tuple(id for id in channel.members if self._lives[id].state is SubscriptionState.CONNECTED)
        channel.next_confirm = now + self.times.confirm
        if not ids:
            return
        if channel.confirms:
            channel.confirming = True
            yield ConfirmSubscription(channel.name, ids, tuple(self._confirmation(id) for id in ids))
        else:
            yield from self._negotiate(ids)

    def _confirmation(self, id: int) -> Confirmation:
        """As it stands in the topic: without ``idl5_`` the server would send everything twice."""
        life = self._lives[id]
        assert life.agreement is not None
        return Confirmation(life.wanted.device, life.wanted.attribute, life.agreement.topic.rpartition(".")[2])

    # --- parts ---

    def _is_silent(self, life: _Subscription) -> bool:
        channel = None if life.agreement is None else self._channels.get(channel_key(life.agreement.channel))
        return channel is not None and channel.stale

    def _negotiate(self, ids: list[int] | tuple[int, ...]) -> Iterator[Negotiate]:
        places: dict[str, list[int]] = {}
        for id in ids:
            places.setdefault(self._lives[id].wanted.place, []).append(id)
        for found in places.values():
            yield Negotiate(tuple(found))

    def _tell(self, now: float, life: _Subscription, errors: tuple[DevError, ...]) -> Iterator[Action]:
        if now >= life.next_error:
            life.next_error = now + self.times.check
            yield ReportError(life.id, errors)

    def _reads(self, life: _Subscription) -> Iterator[Action]:
        """First value, or value after reconnection: not of events that have none, and not again of periodic ones."""
        event, first = life.wanted.event, not life.was_read
        life.was_read = True
        if event is EventType.DATA_READY or (first and not life.wanted.read):
            return
        if first or event is not EventType.PERIODIC:
            yield ReadValue(life.id, ReadReason.INITIAL if first else ReadReason.RESUBSCRIPTION)

    def _join(self, now: float, life: _Subscription, agreement: NegotiatedChannel) -> Iterator[Action]:
        key = channel_key(agreement.channel)
        channel = self._channels.get(key)
        if channel is None:
            beats = heartbeat_topics(agreement.channel)
            times = (now, now + self.times.check, now + self.times.confirm)
            channel = self._channels[key] = _Channel(key, agreement.pair, *times, beats)
            yield Connect(key, agreement.pair, beats)
        elif channel.stale or channel.pair != agreement.pair:
            old, channel.pair = channel.pair, agreement.pair
            channel.stale, channel.lost = False, False
            channel.beat, channel.next_check = now, now + self.times.check
            channel.confirms = True
            if old != agreement.pair:
                yield Disconnect(key, old, channel.heartbeats)
                yield Restarted(self._topics_of(channel))
            yield Connect(key, agreement.pair, channel.heartbeats, True)
        channel.members[life.id] = None

    def _topics_of(self, channel: _Channel) -> tuple[str, ...]:
        found = (self._lives[id].agreement for id in channel.members)
        return tuple(dict.fromkeys(agreement.topic for agreement in found if agreement is not None))

    def _moved(self, life: _Subscription, old: NegotiatedChannel, new: NegotiatedChannel) -> Iterator[Action]:
        """The device runs in another server now, whose counters begin anew: told once for all that listen."""
        yield from self._leave_channel(life, old)
        there = self._channels.get(channel_key(new.channel))
        if there is None or there.members.keys().isdisjoint(self._topics[new.topic]):
            yield Restarted((new.topic,))

    def _leave(self, life: _Subscription) -> Iterator[Action]:
        agreement = life.agreement
        if agreement is None:
            return
        listeners = self._topics.get(agreement.topic, {})
        listeners.pop(life.id, None)
        if not listeners:
            self._topics.pop(agreement.topic, None)
        yield UnsubscribeTopic(agreement.topic, life.id)
        yield from self._leave_channel(life, agreement)

    def _leave_channel(self, life: _Subscription, agreement: NegotiatedChannel) -> Iterator[Action]:
        channel = self._channels.get(channel_key(agreement.channel))
        if channel is None:
            return
        channel.members.pop(life.id, None)
        if not channel.members:
            del self._channels[channel.name]
            yield Disconnect(channel.name, channel.pair, channel.heartbeats)
