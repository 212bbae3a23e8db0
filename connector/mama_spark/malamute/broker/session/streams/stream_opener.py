"""Opens streams for WRITE and READ, which the engine answers. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol.commands import StatusCode

from ...engines.commands import AnsweredCommand
from ..client_output import ClientOutput, error_frames
from ..client_session import ClientSession, PendingReply
from .engine_command_queue import EngineCommandQueue
from .stream_table import StreamTable

#: Most unanswered commands at one engine; clients that connect and leave add to them while it is stalled.
MAX_AWAITED = 100_000


class StreamOpener:
    """The common part of WRITE and READ.

    :param most: limit of streams of one client
    """

    def __init__(self, most: int, streams: StreamTable, engines: EngineCommandQueue, output: ClientOutput) -> None:
        self._most = most
        self._streams = streams
        self._engines = engines
        self._output = output

    def open(self, client: ClientSession, stream: bytes) -> bool:
        """Open the stream if necessary; False if it cannot be used now, which was reported to the client."""
        if self._engines.awaited(stream) >= MAX_AWAITED:
            self._output.reply(client, error_frames(StatusCode.INTERNAL_ERROR, b"the stream does not keep up"))
            return False
        if not self._streams.may_add(stream):
            self._output.fail(client, b"too many streams")
            return False
        read, written = client.subscriptions, client.written_streams
        if len(read) + len(written) >= self._most and stream not in read and stream not in written:
            self._output.fail(client, b"too many streams of one client")
            return False
        self._streams.add(stream)
        return True

    def reply_later(
        self,
        client: ClientSession,
        stream: bytes,
        command: AnsweredCommand,
        reply: PendingReply,
        pattern: bytes | None = None,
    ) -> None:
        """Send a command to the engine; its answer completes the reply to the client."""
        client.pending_replies.append(reply)
        self._engines.put_awaited(stream, command, client, reply, pattern)
