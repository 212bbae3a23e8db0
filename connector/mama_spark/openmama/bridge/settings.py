"""The settings of an OpenMAMA transport. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from mama_spark.openmama.wire.peer.settings import PeerSettings
from mama_spark.options import SinkOptions


@dataclass(frozen=True, slots=True)
class OpenMamaSettings:
    """Times in seconds.

    :param peer: how the network is reached
    :param acks: False: nothing is acknowledged (``ackMode=none``)
    :param wait_for_subscribers: from the first message on; until then, messages without readers wait
    :param require_subscribers: messages that nobody wants are refused; else they end as ``published``
    :param numbers: the messages of each topic are numbered
    :param full_timeout: after which a reader that takes nothing is given up, and messages for it are refused
    """

    peer: PeerSettings
    acks: bool = True
    wait_for_subscribers: float = 5.0
    require_subscribers: bool = False
    numbers: bool = False
    full_timeout: float = 5.0

    @classmethod
    def from_options(cls, o: SinkOptions) -> Self:
        """Convert options to settings.

        :raises ConfigError: the url says nothing sound
        """
        peer = PeerSettings.from_urls(o.url)
        if not peer.naming and not peer.incoming:
            peer = peer.without_receiving()
        return cls(
            # fewer than the window: it is full readers, not the window, that hold a task
            replace(
                peer, linger=o.retry_deadline, high_water_mark=max(1, min(peer.high_water_mark, o.max_in_flight // 2))
            ),
            o.ack_mode != "none",
            o.wait_for_subscribers,
            o.require_subscribers,
            o.mama_numbers,
            o.wait_timeout,
        )
