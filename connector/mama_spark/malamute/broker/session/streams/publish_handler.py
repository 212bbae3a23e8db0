"""Handles STREAM WRITE and STREAM SEND: passes messages of clients and of the broker itself to engines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mama_spark.contracts.headers import MAX_HEADERS
from mama_spark.malamute.protocol import commands, message_blocks
from mama_spark.malamute.protocol.commands import BadFrame, Command
from mama_spark.malamute.protocol.credit import send_cost
from mama_spark.malamute.protocol.extensions import Extension, Feature, read

from ...engines.commands import AcceptBlock, AcceptMessage, ConnectTraffic, SyncOutcomes
from ..broker_events import RECORD_PREFIX, EventRecorder
from ..client_output import ClientOutput, DropClient
from ..client_session import ClientSession, PendingReply
from ..counters import SessionCounters
from ..engine_backlog import EngineBacklogPolicy
from ..repeat_limiter import RepeatLimiter
from ..settings import SessionSettings
from ..states import SessionEvent, SessionState
from .engine_command_queue import EngineCommandQueue
from .stream_opener import StreamOpener
from .stream_table import StreamTable

#: Entries of the cache of subjects.
MAX_CACHED_SUBJECTS = 4096
#: Stands for the client in messages and commands of the broker itself.
BROKER = ClientSession(b"", b"", Feature(0), 0.0, SessionState.START)


class SubjectCache(dict[bytes, bytes | None]):
    """Cache: command frame -> subject of a STREAM SEND without an extension, else None."""

    def __missing__(self, frame: bytes) -> bytes | None:
        subject = commands.subject_of_send([frame])
        if subject is not None:
            if len(self) >= MAX_CACHED_SUBJECTS:
                self.clear()
            self[frame] = subject
        return subject


class PublishHandler:
    """:param drop: called for a client that sent a message it may not send
    :ivar unpacked: number of messages received in blocks, without one per block, which the caller counts
    """

    def __init__(
        self,
        settings: SessionSettings,
        streams: StreamTable,
        opener: StreamOpener,
        engines: EngineCommandQueue,
        output: ClientOutput,
        repeats: RepeatLimiter,
        events: EventRecorder,
        counters: SessionCounters,
        drop: DropClient,
    ) -> None:
        self.unpacked = 0
        self._settings = settings
        self._streams = streams
        self._opening = streams.opening
        self._full = streams.full
        self._opener = opener
        self._engines = engines
        self._output = output
        self._repeats = repeats
        self._events = events
        self._counters = counters
        self._drop = drop
        self.subjects = SubjectCache()

    # --- commands ------------------------------------------------------------------------------------------------

    def write(self, client: ClientSession, command: commands.StreamWrite, now: float) -> None:
        if client.write_stream == command.stream and not self._repeats.allows(client, now):
            return
        client.write_stream = None  # if WRITE is refused, SENDs must not go to the previous stream
        own = command.stream == self._settings.events and bool(command.stream)
        if own and Feature.DISCOVERY not in client.features:
            self._output.fail(client, b"the stream is the broker's own")
            return
        if not self._opener.open(client, command.stream):
            return
        client.write_stream = command.stream
        if command.stream not in client.written_streams:
            client.written_streams[command.stream] = None
            self._events.record("WRITING", client, command.stream)
        self._opener.reply_later(client, command.stream, ConnectTraffic(), PendingReply(for_write=True))

    def send(self, client: ClientSession, command: commands.StreamSend, now: float) -> None:
        assert client.write_stream is not None
        extension = read(command.trailing) if client.features else None
        octets = 4 + len(command.subject) + len(command.trailing) + sum(map(len, command.content))
        if extension is not None and extension.block is not None and Feature.BLOCKS in client.features:
            self._send_block(client, client.write_stream, command.content, extension.block, octets)
            return
        if client.send_window is not None:
            client.send_window.sent(octets)
        self.accept(client, client.write_stream, command.subject, command.content, extension)

    def fail(self, client: ClientSession, command: Command, now: float) -> None:
        """Refuse SEND without WRITE, and CONFIRM without the feature."""
        self._output.fail(client, b"")

    # --- messages ------------------------------------------------------------------------------------------------

    def accept(
        self,
        client: ClientSession,
        stream: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None,
    ) -> None:
        """Pass one message to the engine, unless the client may not send it or the backlog is full."""
        if extension is not None and extension.too_many:
            self._refuse_headers(client)
            return
        if self._opening and stream in self._opening and not self._accepts_early(client, stream, content):
            return
        if stream == self._settings.events and not subject.startswith(RECORD_PREFIX):
            self._output.fail(client, b"such subjects are the broker's own")
            self._drop(client, SessionEvent.RESERVED_SUBJECT)
            return
        if self._full and stream in self._full:
            self._backlog_full(client)
            return
        if client.features:
            client.unsynced_sends[stream] = client.unsynced_sends.get(stream, 0) + 1
        self._engines.put(stream, AcceptMessage(client, client.address, subject, content, extension))

    def publish(self, stream: bytes, messages: Iterable[tuple[bytes, Sequence[bytes], Extension]]) -> None:
        """Publish messages of the broker itself: subject, content, headers."""
        self._streams.add(stream)
        for subject, content, extension in messages:
            self._engines.put(stream, AcceptMessage(BROKER, b"", subject, content, extension))
        # makes the engine drop the outcomes, which the broker does not need
        self._engines.put_silent([stream], SyncOutcomes(BROKER), BROKER)

    def _send_block(
        self, client: ClientSession, stream: bytes, content: Sequence[bytes], count: int, octets: int
    ) -> None:
        try:
            block = message_blocks.unpack(count, content)
        except BadFrame:
            self._counters.malformed += 1
            return
        self.unpacked += count - 1
        if client.send_window is not None:
            client.send_window.sent(octets, count)
        if any(one.too_many for one in block.extensions or ()):
            self._refuse_headers(client)
            return
        if stream in self._opening or stream in self._full or stream == self._settings.events:
            for message in block.messages():
                if client.connected:
                    self.accept(client, stream, *message)
            return
        client.unsynced_sends[stream] = client.unsynced_sends.get(stream, 0) + count
        self._engines.put(stream, AcceptBlock(client, client.address, block))

    def _accepts_early(self, client: ClientSession, stream: bytes, content: Sequence[bytes]) -> bool:
        """Whether a message sent before the answer to WRITE fits in the limit for streams that are opening."""
        octets = send_cost(sum(map(len, content)), 1)
        if self._streams.count_early(stream, octets) <= self._settings.queue:
            return True
        self._output.fail(client, b"the stream is not open yet")
        self._drop(client, SessionEvent.SENT_TOO_EARLY)
        return False

    def _refuse_headers(self, client: ClientSession) -> None:
        """Disconnect the client, which would miss an outcome."""
        self._output.fail(client, b"a message has more than %d headers" % MAX_HEADERS)
        self._drop(client, SessionEvent.TOO_MANY_HEADERS)

    def _backlog_full(self, client: ClientSession) -> None:
        """Refuse a message. A client that announced features is disconnected, so that it does not miss an outcome."""
        self._counters.lost_sends += 1
        if self._settings.behind is EngineBacklogPolicy.DISCONNECT or client.features:
            self._output.fail(client, b"the stream does not keep up")
            self._drop(client, SessionEvent.BACKLOG_FULL)
