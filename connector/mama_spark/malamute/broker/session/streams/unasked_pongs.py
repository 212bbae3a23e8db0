"""Sends PONG unasked to plain clients whose PINGs wait behind their own messages. Pure.

The C client sends PING each second through the same pipe as its messages, and takes the broker for gone after 4 s
without input. While the broker holds it back (it reads no faster than its engines work), that PING is far behind: the
client then discards what is delivered to it, and when it is destroyed in that state it throws away its queue and sends
no CLOSE. It accepts a PONG that it has not asked for in every state.

A client that announces extensions is left out: its PONG acknowledges messages, and it waits for as long as it likes.
"""

from __future__ import annotations

from mama_spark.malamute.protocol import commands

from ..client_output import ClientOutput
from ..client_session import ClientSession
from ..client_table import ClientTable

#: Seconds between looks at the clients: with the silence that is allowed, less than half of what the C client waits.
LOOK = 0.5
_PONG = commands.encode(commands.Pong())


class UnaskedPongs:
    """Gives PONGs to those of the clients that announced nothing.

    :param silence: seconds without PONG after which a client that was heard gets one; 0 = never
    """

    def __init__(self, silence: float, clients: ClientTable, output: ClientOutput) -> None:
        self._silence = silence
        self._clients = clients
        self._output = output
        self._looked = 0.0
        self._pending = False  # a client was heard, and its last PONG is not long ago

    def next_look(self) -> float | None:
        """Time of the next :meth:`look`; None while no client may need it."""
        newest = self._clients.last_heard() if self._silence and self._clients.plain else None
        if newest is not None and (self._pending or newest.last_heard > self._looked):
            return self._looked + LOOK
        return None

    def look(self, now: float) -> None:
        """Send PONG to each plain client that was heard since its last PONG, if that was ``silence`` ago.

        Time in which the sockets were not read counts as heard (:meth:`ClientTable.excuse_silence`), so clients get
        PONGs then, too.
        """
        if now < self._looked + LOOK or not self._silence or not self._clients.plain:
            return
        self._looked, self._pending = now, False
        for client in reversed(self._clients.by_identity.values()):
            if client.last_heard + self._silence + LOOK < now:
                break  # all others were silent for longer
            if client.plain and client.last_heard > client.last_pong:
                self._answer(client, now)

    def _answer(self, client: ClientSession, now: float) -> None:
        if now - client.last_pong < self._silence:
            self._pending = True
        elif not client.blocked:  # what waits for a socket that takes no more is input enough
            client.last_pong = now
            self._output.emit(client, _PONG)
