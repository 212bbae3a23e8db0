"""Publishing to streams: WRITE and SEND pass messages of clients, and of the broker itself, to engines; PING asks these
for the outcomes; send windows bound what a client has sent and no engine has answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mama_spark.contracts.headers import MAX_HEADERS
from mama_spark.malamute.protocol import commands, message_blocks
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.credit import SendWindow, send_cost, window_for
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from ..engines.commands import AcceptBlock, AcceptMessage, ConnectTraffic, SyncOutcomes
from .broker_events import RECORD_PREFIX
from .clients import PONG, ClientSession, Connections, Frames, PendingReply, error_frames
from .settings import EngineBacklogPolicy
from .states import SessionEvent, SessionState
from .streams import Streams

MAX_CACHED_SUBJECTS = 4096
#: Stands for the broker itself as a client of engines.
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


class Publishing:
    """Passes messages of clients, and of the broker itself, to the engines of streams, and answers WRITE and PING.

    :ivar unpacked: number of messages received in blocks, without one per block, which the caller counts
    :ivar publishers: number of clients with a send window that have used it; they share the limit of a stream's backlog
    """

    def __init__(self, clients: Connections, streams: Streams) -> None:
        self.unpacked = 0
        self.publishers = 0
        self.subjects = SubjectCache()
        self._clients = clients
        self._settings = clients.settings
        self._streams = streams
        self._opening = streams.opening
        self._full = streams.full

    def write(self, client: ClientSession, command: commands.StreamWrite) -> None:
        if client.write_stream == command.stream and not self._clients.answers_repeat(client):
            return
        client.write_stream = None  # if WRITE is refused, SENDs must not go to the previous stream
        own = command.stream == self._settings.events and bool(command.stream)
        if own and Feature.DISCOVERY not in client.features:
            self._clients.fail(client, b"the stream is the broker's own")
            return
        if not self._streams.open(client, command.stream):
            return
        client.write_stream = command.stream
        if command.stream not in client.written_streams:
            client.written_streams[command.stream] = None
            self._clients.events.record("WRITING", client, command.stream)
        self._streams.reply_later(client, command.stream, ConnectTraffic(), PendingReply(for_write=True))

    def send(self, client: ClientSession, command: commands.StreamSend) -> None:
        assert client.write_stream is not None
        extension = read(command.trailing) if client.features else None
        frame_bytes = 4 + len(command.subject) + len(command.trailing) + sum(map(len, command.content))
        if extension is not None and extension.block is not None and Feature.BLOCKS in client.features:
            self._send_block(client, client.write_stream, command.content, extension.block, frame_bytes)
            return
        if client.send_window is not None:
            client.send_window.sent(frame_bytes)
        self.accept(client, client.write_stream, command.subject, command.content, extension)

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
            self._clients.fail(client, b"such subjects are the broker's own", SessionEvent.RESERVED_SUBJECT)
            return
        if self._full and stream in self._full:
            self._backlog_full(client)
            return
        if client.features:
            client.unsynced_sends[stream] = client.unsynced_sends.get(stream, 0) + 1
        self._streams.put(stream, AcceptMessage(client, client.address, subject, content, extension))

    def publish(self, stream: bytes, messages: Iterable[tuple[bytes, Sequence[bytes], Extension]]) -> None:
        """Publish messages of the broker itself: subject, content, headers."""
        self._streams.add(stream)
        for subject, content, extension in messages:
            self._streams.put(stream, AcceptMessage(BROKER, b"", subject, content, extension))
        # makes the engine drop the outcomes, which the broker does not need
        self._streams.put_silent([stream], SyncOutcomes(BROKER), BROKER)

    def _send_block(
        self, client: ClientSession, stream: bytes, content: Sequence[bytes], count: int, frame_bytes: int
    ) -> None:
        try:
            block = message_blocks.unpack(count, content)
        except BadFrame:
            self._clients.counters.malformed += 1
            return
        self.unpacked += count - 1
        if client.send_window is not None:
            client.send_window.sent(frame_bytes, count)
        if any(one.too_many for one in block.extensions or ()):
            self._refuse_headers(client)
            return
        if stream in self._opening or stream in self._full or stream == self._settings.events:
            for message in block.messages():
                if client.connected:
                    self.accept(client, stream, *message)
            return
        client.unsynced_sends[stream] = client.unsynced_sends.get(stream, 0) + count
        self._streams.put(stream, AcceptBlock(client, client.address, block))

    def _accepts_early(self, client: ClientSession, stream: bytes, content: Sequence[bytes]) -> bool:
        """Whether a message sent before the answer to WRITE fits in the limit for streams that are opening."""
        opening = self._streams[stream]
        opening.early_bytes += send_cost(sum(map(len, content)), 1)
        if opening.early_bytes <= self._settings.queue:
            return True
        self._clients.fail(client, b"the stream is not open yet", SessionEvent.SENT_TOO_EARLY)
        return False

    def _refuse_headers(self, client: ClientSession) -> None:
        """Disconnect the client, which would miss an outcome."""
        reason = b"a message has more than %d headers" % MAX_HEADERS
        self._clients.fail(client, reason, SessionEvent.TOO_MANY_HEADERS)

    def _backlog_full(self, client: ClientSession) -> None:
        """A client that announced features is disconnected, so that it does not miss an outcome."""
        self._clients.counters.lost_sends += 1
        if self._settings.behind is EngineBacklogPolicy.DISCONNECT or client.features:
            self._clients.fail(client, b"the stream does not keep up", SessionEvent.BACKLOG_FULL)

    def ping(self, client: ClientSession) -> None:
        """Answer PING: at once, or when the engines have reported the outcomes of the client's messages."""
        has_acks = Feature.ACKS in client.features
        if has_acks and client.lost_sends:
            self._say_lost(client)
        elif has_acks and client.unsynced_sends:
            sends, client.unsynced_sends = client.unsynced_sends, {}
            reply = PendingReply(sends=sends, send_bytes=self._pinged(client), syncs=len(sends))
            for stream in sends:
                self._streams.put_awaited(stream, SyncOutcomes(client), client, reply)
            client.pending_replies.append(reply)
        elif self._streams.starts_slowly() and not any(reply.syncs for reply in client.pending_replies):
            client.last_pong = self._clients.now
            self._clients.emit(client, PONG)  # ahead of earlier replies, or the client would time out
        else:
            if not client.pending_replies:
                client.last_pong = self._clients.now
            self._clients.reply(client, self._pong(client, PendingReply(send_bytes=self._pinged(client))))

    def synced(self, client: ClientSession, reply: PendingReply, stream: bytes, outcomes: tuple[AckRun, ...]) -> None:
        """Take the answer of an engine to SYNC; the last one completes the reply to PING."""
        reply.outcomes[stream] = outcomes
        reply.syncs -= 1
        if not reply.syncs:
            reply.frames = self._pong(client, reply)

    def drop_outcomes(self, client: ClientSession) -> None:
        self._streams.put_silent(client.unsynced_sends, SyncOutcomes(client), client)
        client.unsynced_sends = {}

    def _say_lost(self, client: ClientSession) -> None:
        """ERROR 502, as to a PING that waits when a stream is lost: a PONG would acknowledge all that was sent."""
        self.drop_outcomes(client)
        self.sends_lost(client, self._pinged(client))
        reason, client.lost_sends = client.lost_sends, b""
        self._clients.reply(client, error_frames(StatusCode.INTERNAL_ERROR, reason))

    def _pong(self, client: ClientSession, reply: PendingReply) -> Frames:
        """PONG with the outcomes of sent messages and a new grant for the send window; all engines have answered."""
        acks: tuple[AckRun, ...] = ()
        for stream, count in reply.sends.items():
            acks += reply.outcomes.get(stream) or (AckRun(StoreOutcome.ACCEPTED, count),)
        credit = None
        if client.send_window is not None:
            client.send_window.answered(reply.send_bytes)
            credit = self._grant(client.send_window) or None
        return commands.encode(commands.Pong(write(Extension(acks=acks, credit=credit)))) if acks or credit else PONG

    def open_window(self, client: ClientSession) -> int | None:
        """The first credit of a new client, for OK; None if it has no send window."""
        if Feature.SENDING | Feature.ACKS not in client.features:
            return None
        client.send_window = SendWindow()
        return self._grant(client.send_window)

    def close_window(self, client: ClientSession) -> None:
        if client.send_window is not None:
            self.publishers -= client.send_window.in_use
            client.send_window = None

    def _pinged(self, client: ClientSession) -> int:
        window = client.send_window
        if window is None:
            return 0
        covered_bytes = window.ping()
        if covered_bytes and not window.in_use:
            window.in_use = True
            self.publishers += 1
        return covered_bytes

    @staticmethod
    def sends_lost(client: ClientSession, covered_bytes: int) -> None:
        """To be called when an engine failed before it answered a PING that covers ``covered_bytes``."""
        if client.send_window is not None:
            client.send_window.answered(covered_bytes)

    def _grant(self, window: SendWindow) -> int:
        return window.grant(window_for(self.publishers, self._settings.backlog))
