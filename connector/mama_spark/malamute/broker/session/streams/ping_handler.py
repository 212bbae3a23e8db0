"""Answers PING: at once, or when the engines have reported the outcomes of the client's messages. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from ...engines.commands import SyncOutcomes
from ..client_output import ClientOutput, error_frames
from ..client_session import ClientSession, Frames, PendingReply
from .engine_command_queue import EngineCommandQueue
from .log_query_server import LogQueryServer
from .publish_windows import PublishWindows
from .stream_table import StreamTable

PONG = commands.encode(commands.Pong())


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
