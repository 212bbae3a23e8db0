"""A peer's part in the naming service of OZ. Pure: frames and times in, actions out.

The server greets each subscriber with a welcome (``W``), which says where announcements are sent. The peer sends ``C``
every 0.1 s until its own comes back, then ``c`` each second, and ``D`` at its end. It connects to each uuid that it
did not know, once, and answers with ``C``, so that the other learns of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from mama_spark.mama.messages.omnm import BadMessage

from .naming import (
    BEACON,
    CONNECT,
    DISCONNECT,
    OFFLINE_AFTER,
    SUSPECT_AFTER,
    WELCOME,
    NamingFrame,
    PeerPresence,
    decode_naming,
    encode_naming,
)

CONNECT_INTERVAL, BEACON_INTERVAL = 0.1, 1.0  #: seconds, as real programs
FORGET_AFTER = 3600.0  #: seconds offline
MAX_PEERS = 10_000
_CHECK_INTERVAL = 0.5  #: seconds between looks for peers that fell silent


@dataclass(slots=True)
class NamedPeer:
    """Another peer; ``heard``: time of its last announcement, monotonic seconds."""

    frame: NamingFrame
    heard: float
    presence: PeerPresence = PeerPresence.ONLINE


class PeerChange(NamedTuple):
    """A new state of a peer; ``orderly``: an offline peer took its leave."""

    frame: NamingFrame
    presence: PeerPresence
    orderly: bool = False


class Announce(NamedTuple):
    data: bytes


class Dial(NamedTuple):
    """Connect the sender of announcements, or the receiving socket; or end that."""

    endpoint: str
    sender: bool = False
    connect: bool = True


NamingAction = Announce | Dial | PeerChange


class NamingClient:
    """State of one peer.

    :param me: the announcement; its type is ignored
    :ivar joined: whether its own announcement came back
    """

    def __init__(self, me: NamingFrame, servers: int = 1) -> None:
        self._announcements = {kind: encode_naming(replace(me, type=kind)) for kind in (CONNECT, BEACON, DISCONNECT)}
        self._uuid = me.uuid
        self._servers = servers
        self._senders: list[str] = []
        self._joining = False
        self._next_announcement = 0.0
        self._answer_due = False
        self._next_check = 0.0
        self.peers: dict[str, NamedPeer] = {}
        self.joined = False

    def received(self, data: bytes, now: float) -> list[NamingAction]:
        """Take a frame from a name server; anything else changes nothing."""
        try:
            frame = decode_naming(data)
        except BadMessage:
            return []
        if frame.type == WELCOME:
            return self._welcomed(frame.endpoint, now)
        if frame.uuid == self._uuid:
            if frame.type != DISCONNECT:
                self.joined, self._joining = True, False
            return []
        return self._gone(frame) if frame.type == DISCONNECT else self._heard(frame, now)

    def tick(self, now: float) -> list[NamingAction]:
        actions: list[NamingAction] = []
        if self._senders and now >= self._next_announcement:
            soon = self._joining or self._answer_due
            kind = CONNECT if soon else BEACON
            self._answer_due = False
            self._next_announcement = now + (CONNECT_INTERVAL if self._joining else BEACON_INTERVAL)
            actions.append(Announce(self._announcements[kind]))
        if now >= self._next_check:
            self._next_check = now + _CHECK_INTERVAL
            actions += self._silent(now)
        return actions

    def wake_at(self) -> float:
        """Latest time of the next :meth:`tick`."""
        return min(self._next_check, self._next_announcement) if self._senders else self._next_check

    def leave(self) -> list[NamingAction]:
        """The announcement of an orderly end: the last one."""
        return [Announce(self._announcements[DISCONNECT])] if self._senders else []

    def _welcomed(self, endpoint: str, now: float) -> list[NamingAction]:
        if not endpoint.startswith("tcp://"):
            return []
        actions: list[NamingAction] = []
        if endpoint not in self._senders:
            while len(self._senders) >= self._servers:  # a server that was restarted has another endpoint
                actions.append(Dial(self._senders.pop(0), sender=True, connect=False))
            self._senders.append(endpoint)
            actions.append(Dial(endpoint, sender=True))
        self._joining = True
        self._next_announcement = now
        return actions

    def _heard(self, frame: NamingFrame, now: float) -> list[NamingAction]:
        peer = self.peers.get(frame.uuid)
        if peer is not None:
            came_back = peer.presence is not PeerPresence.ONLINE
            peer.heard, peer.presence = now, PeerPresence.ONLINE
            return [PeerChange(peer.frame, PeerPresence.ONLINE)] if came_back else []
        if not frame.endpoint.startswith("tcp://") or len(self.peers) >= MAX_PEERS:
            return []
        connected = self._is_connected(frame.endpoint)
        self.peers[frame.uuid] = NamedPeer(frame, now)
        self._answer_due = True
        self._next_announcement = min(self._next_announcement, now + CONNECT_INTERVAL)
        change = PeerChange(frame, PeerPresence.ONLINE)
        return [change] if connected else [Dial(frame.endpoint), change]

    def _gone(self, frame: NamingFrame) -> list[NamingAction]:
        peer = self.peers.pop(frame.uuid, None)
        if peer is None:
            return []
        change = PeerChange(peer.frame, PeerPresence.OFFLINE, True)
        endpoint = peer.frame.endpoint
        return [change] if self._is_connected(endpoint) else [Dial(endpoint, connect=False), change]

    def _silent(self, now: float) -> list[NamingAction]:
        actions: list[NamingAction] = []
        for uuid, peer in list(self.peers.items()):
            silence = now - peer.heard
            if silence >= FORGET_AFTER:
                del self.peers[uuid]
                if not self._is_connected(peer.frame.endpoint):
                    actions.append(Dial(peer.frame.endpoint, connect=False))
            elif silence >= OFFLINE_AFTER and peer.presence is not PeerPresence.OFFLINE:
                peer.presence = PeerPresence.OFFLINE
                actions.append(PeerChange(peer.frame, PeerPresence.OFFLINE))
            elif silence >= SUSPECT_AFTER and peer.presence is PeerPresence.ONLINE:
                peer.presence = PeerPresence.SUSPECT
                actions.append(PeerChange(peer.frame, PeerPresence.SUSPECT))
        return actions

    def _is_connected(self, endpoint: str) -> bool:
        return any(peer.frame.endpoint == endpoint for peer in self.peers.values())
