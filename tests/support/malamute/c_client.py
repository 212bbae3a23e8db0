"""A scripted peer that does what the original C client was seen to do, in simulated time.

Its PING stands in one pipe with its messages. After 4 s without input it is disconnected: it then discards what is
delivered to it until the next PONG, and if it is destroyed in that state it throws away its pipe and sends no CLOSE.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

PING_INTERVAL, PATIENCE = 1.0, 4.0
OPEN = bytes.fromhex("aaa801084d414c414d5554450001" + "0163")  #: of the address "c"
PING, PONG, CLOSE, OK = map(bytes.fromhex, ("aaa802", "aaa803", "aaa804", "aaa80e00c800"))
DELIVERS = (8, 10, 13)


@dataclass
class ScriptedCClient:
    """:ivar pipe: what it has sent and the broker has not read
    :ivar taken: deliveries that its program got
    """

    pipe: deque[list[bytes]] = field(default_factory=deque)
    taken: list[list[bytes]] = field(default_factory=list)
    discarded: int = 0
    connected: bool = True
    ended: bool = False
    pongs: int = 0
    _closing: bool = False
    _last_input: float = 0.0
    _next_ping: float = PING_INTERVAL

    def send(self, *frames: bytes) -> None:
        self.pipe.append(list(frames))

    def destroy(self) -> None:
        """CLOSE goes behind what it has sent; without a connection, all of that is thrown away."""
        if self.connected:
            self._closing = True
            self.send(CLOSE)
        else:
            self._end()

    def pass_time(self, now: float) -> None:
        if self.ended:
            return
        if now >= self._last_input + PATIENCE:
            self.connected = False
            if self._closing:
                self._end()
        if self.connected and not self._closing and now >= self._next_ping:
            self._next_ping = now + PING_INTERVAL
            self.send(PING)

    def receive(self, frames: list[bytes], now: float) -> None:
        self._last_input = now
        if frames == [PONG]:
            self.connected = True
            self.pongs += 1
        elif frames[0][2] in DELIVERS and self.connected:
            self.taken.append(frames)
        elif frames[0][2] in DELIVERS:
            self.discarded += 1
        elif frames == [OK] and self._closing and not self.pipe:
            self.ended = True

    def _end(self) -> None:
        self.pipe.clear()
        self.ended = True
