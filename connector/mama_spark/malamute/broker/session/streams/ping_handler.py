"""Answers PING: at once, or when the engines have reported the outcomes of the client's messages. Sends PONG unasked to
clients that need one. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from ...engines.commands import SyncOutcomes
from ..client_output import ClientOutput, error_frames
from ..client_session import ClientSession, Frames, PendingReply
from ..client_table import ClientTable
from .engine_command_queue import EngineCommandQueue
from .log_query_server import LogQueryServer
from .publish_windows import PublishWindows
from .stream_table import StreamTable

PONG = commands.encode(commands.Pong())
#: Seconds between looks at the clients: with the silence that is allowed, less than half of what the C client waits.
LOOK = 0.5


class PingHandler:
    """Answers PING, and forwards queries about stored streams in PINGs."""

    def __init__(
        self,
        output: ClientOutput,
        engines: EngineCommandQueue,
        streams: StreamTable,
        credit: PublishWindows,
        queries: LogQueryServer,
    ) -> None:
        self._output = output
        self._engines = engines
        self._streams = streams
        self._credit = credit
        self._queries = queries

    def ping(self, client: ClientSession, command: commands.Ping, now: float) -> None:
        if command.trailing and Feature.LOG in client.features:
            query = read(command.trailing).question
            if query:
                self._queries.ask(client, query)
                return
        if Feature.ACKS in client.features and client.lost_sends:
            self._say_lost(client)
            return
        if Feature.ACKS not in client.features or not client.unsynced_sends:
            if self._streams.starts_slowly(now) and not any(reply.syncs for reply in client.pending_replies):
                client.last_pong = now
                self._output.emit(client, PONG)  # ahead of earlier replies, or the client would time out
            else:
                if not client.pending_replies:
                    client.last_pong = now
                self._output.reply(client, self.pong(client, PendingReply(send_octets=self._credit.ping(client))))
            return
        sends, client.unsynced_sends = client.unsynced_sends, {}
        reply = PendingReply(sends=sends, send_octets=self._credit.ping(client), syncs=len(sends))
        for stream in sends:
            self._engines.put_awaited(stream, SyncOutcomes(client), client, reply)
        client.pending_replies.append(reply)

    def _say_lost(self, client: ClientSession) -> None:
        """ERROR 502, as to a PING that waits when a stream is lost: a PONG would acknowledge all that was sent."""
        self._engines.put_silent(client.unsynced_sends, SyncOutcomes(client), client)
        client.unsynced_sends = {}
        self._credit.lost(client, self._credit.ping(client))
        reason, client.lost_sends = client.lost_sends, b""
        self._output.reply(client, error_frames(StatusCode.INTERNAL_ERROR, reason))

    def pong(self, client: ClientSession, reply: PendingReply) -> Frames:
        """:param reply: of a PING that all engines have answered"""
        acks: tuple[AckRun, ...] = ()
        for stream, count in reply.sends.items():
            acks += reply.outcomes.get(stream) or (AckRun(StoreOutcome.ACCEPTED, count),)
        credit = self._credit.pong(client, reply.send_octets)
        return commands.encode(commands.Pong(write(Extension(acks=acks, credit=credit)))) if acks or credit else PONG


class UnaskedPongs:
    """Sends PONG unasked to plain clients whose PINGs wait behind their own messages.

    The C client sends PING each second through the same pipe as its messages, and takes the broker for gone after 4 s
    without input. While the broker holds it back (it reads no faster than its engines work), that PING is far behind:
    the client then discards what is delivered to it, and when it is destroyed in that state it throws away its queue
    and sends no CLOSE. It accepts a PONG that it has not asked for in every state.

    A client that announces extensions is left out: its PONG acknowledges messages, and it waits for as long as it
    likes.

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
            self._output.emit(client, PONG)
