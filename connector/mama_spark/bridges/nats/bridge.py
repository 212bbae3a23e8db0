"""The NATS bridge: JetStream behind the contract of :mod:`mama_spark.bridge`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...bridge import Ack, Acks, BridgeEvent, Capabilities, EventKind, Polled, Prepared, Refusals
from ...errors import BadTopic, ClientClosed, ConfigError, MamaError, PublishError, Refused, Unavailable
from ...message import Int64s, MessageBatch
from . import headers as hd
from . import streams as st
from .acks import Columns, Reply, Stored
from .batching import Batching
from .client_errors import from_client
from .errors import not_entitled
from .frames import MAX_CONTROL_LINE, TOKEN_WIDTH, Framer
from .frames import Reply as ReplyTo
from .link import MAX_UNWRITTEN, Link, Row
from .loop import Loop
from .mailbox import Mailbox
from .pool import POOL
from .settings import NatsSettings
from .subjects import bad_subjects, why_bad

#: Most bytes of frames made in one call of ``send``.
_CHUNK = 1024 * 1024
_REMEMBERED = 128 * 1024  #: sends whose topics are kept, to find those that a permission violation is about


class NatsBridge:
    """Publishes to JetStream over one leased connection.

    :ivar mode: ``message`` (an ack each), ``batch`` (fast ingest: acks settle prefixes, no sequences) or ``none``;
        with ``ack_mode="auto"`` it is known after the first :meth:`prepare`
    :ivar warnings: what :meth:`open` and :meth:`prepare` found questionable, for the log
    """

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.mode = "message" if settings.ack_mode == "auto" else settings.ack_mode
        self.warnings: list[str] = []
        self._attached: tuple[Any, Loop | None] | None = None
        self._link: Link | None = None
        self._mail = Mailbox()
        self._directory = st.Directory()
        self._base = 0
        self._last_token = -1
        self._sent: deque[tuple[int, pa.DictionaryArray]] = deque()
        self._framer: Framer | None = None
        self._batching: Batching | None = None
        self._decided = settings.ack_mode != "auto"
        self._starved = False
        self._none: deque[tuple[int, Int64s]] = deque()
        self._checked: Any = None
        self._owners: dict[str, str | None] = {}
        self._max_payload = 1024 * 1024

    @classmethod
    def attach(
        cls, js: Any, *, loop: asyncio.AbstractEventLoop | None = None, dedup: bool = True, **options: Any
    ) -> NatsBridge:
        """A bridge over a user's live JetStream context, on the loop that it lives on; uses public calls only.

        :param js: ``nats.js.JetStreamContext``
        :param loop: where the client runs; needed when called from another thread than the loop's
        """
        if loop is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise ConfigError("attach() outside of the client's event loop needs loop=") from None
        bridge = cls(NatsSettings(dedup=dedup, fast=False, ack_mode="message", **options))
        bridge._attached = (js, Loop(loop))
        return bridge

    def __repr__(self) -> str:
        return f"<NatsBridge {self.mode}, {'closed' if self._link is None else repr(self._link)}>"

    @property
    def capabilities(self) -> Capabilities:
        acks = {"none": Ack.NONE}.get(self.mode, Ack.STORED)
        reply = 0 if self.mode == "none" else 60 + TOKEN_WIDTH
        return Capabilities(
            ack=acks,
            sequence=self.mode == "message",
            dedup=self.settings.dedup,
            headers=True,
            ordered=self.mode == "batch" and self.settings.dedup,  # in each stream: a gap refuses all that follows
            max_payload=self._max_payload,
            max_topic=MAX_CONTROL_LINE - reply - 24,
        )

    @property
    def connected_to(self) -> str:
        """Name and version of the server."""
        if self._link is None:
            return "nothing"
        client = self._link.client
        return f"nats-server {client.connected_server_version} at {getattr(client.connected_url, 'netloc', '?')}"

    def describe_streams(self) -> list[str]:
        """The streams that have been looked at, a line each."""
        return [
            f"{s.name} takes {', '.join(s.subjects) or 'nothing'}; fast ingest {'on' if s.batched else 'off'}, "
            f"duplicates recognised for {s.duplicate_window:g} s"
            for s in self._directory.streams.values()
        ]

    # --- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        if self._attached is not None:
            self._open_attached(*self._attached)
            return
        link = POOL.lease(self.settings)
        self._take(link)
        try:
            link.loop.run(self._check(link), 3 * self.settings.connect_timeout + 5, "checking JetStream")
        except BaseException:
            self.close()
            raise

    def _open_attached(self, js: Any, loop: Loop | None) -> None:
        assert loop is not None
        client = js._nc
        link = Link(loop, client, fast=False)
        link.owned = False
        self._take(link)
        _hook(client, link)
        if loop.here():
            loop.loop.create_task(self._start_attached(link))
        else:
            loop.run(link.start(self.settings.connect_timeout), self.settings.connect_timeout + 1, "subscribing")

    async def _start_attached(self, link: Link) -> None:
        try:
            await link.start(self.settings.connect_timeout)
        except MamaError as e:
            self.on_closed(str(e))

    def _take(self, link: Link) -> None:
        self._link = link
        self._base = link.next_token
        self._framer = Framer(ReplyTo(link.inbox) if self.mode != "none" else None)
        self._batching = Batching(link, self._mail, self.settings)
        link.consumer = self
        link.loop.mourn(self._mail.died)
        if link.client.max_payload:
            self._max_payload = link.client.max_payload

    async def _check(self, link: Link) -> None:
        directory = link.remember("directory")
        if directory is None:
            directory = st.Directory()
            await st.check_jetstream(link, directory, self.settings.connect_timeout)
            link.note("directory", directory)
        self._directory = directory
        if directory.blind:
            self.warnings.append("no permission to ask the JetStream API: streams are not checked")
        name = self.settings.stream
        if name is None or directory.blind:
            return
        stream = directory.streams.get(name) or await st.stream_info(link, name, self.settings.connect_timeout)
        if stream is not None:
            directory.add(stream)
            self._judge(stream)
            self._decide([stream])
        elif not self.settings.create_stream:
            known = ", ".join(await st.names(link, self.settings.connect_timeout) or []) or "none"
            raise ConfigError(f"there is no stream {name!r}; existing streams: {known}")

    def _judge(self, stream: st.Stream) -> None:
        """:raises ConfigError: a publisher that waits for acknowledgements cannot use it"""
        if stream.no_ack and self.mode != "none":
            raise ConfigError(f"stream {stream.name!r} never acknowledges (no_ack): use ackMode=none or change it")
        if self.settings.ack_mode == "batch" and not stream.batched:
            raise ConfigError(f"stream {stream.name!r} does not allow fast ingest (allow_batched): ackMode=message")
        if stream.interest and not stream.consumers:
            self._warn(f"stream {stream.name!r} keeps messages only for consumers, and has none: all will be dropped")
        if self.settings.dedup and stream.duplicate_window < self.settings.retry_deadline:
            self._warn(
                f"stream {stream.name!r} recognises duplicates for {stream.duplicate_window:g} s only, and resends go "
                f"on for {self.settings.retry_deadline:g} s: late ones would be stored twice"
            )

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _decide(self, streams: list[st.Stream]) -> None:
        """``auto``: fast ingest where ids do not need an answer each and everything allows it."""
        link = self._link
        assert link is not None
        # with ids, fast ingest costs more than it gains, unless order is asked for, which only both together keep
        wanted = self.settings.ordered == self.settings.dedup
        version = link.client.connected_server_version
        able = link.fast and (version.major, version.minor) >= (2, 14) and all(s.batched for s in streams)
        if not self._decided and streams:
            self._decided = True
            if wanted and able and len(streams) == 1:
                self.mode = "batch"
        if self.mode == "batch" and not link.fast:
            raise ConfigError("ackMode=batch needs a version of nats-py that this package knows")

    # --- preparing -------------------------------------------------------------------------------------------

    def prepare(self, batch: MessageBatch) -> Prepared:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        bad, fragile = hd.check(batch, self._max_payload)
        names = batch.topics.dictionary
        reasons = self._topic_reasons(names)
        if reasons:
            wrong = np.zeros(len(names) + 1, np.bool_)
            wrong[list(reasons)] = True
            indices = pc.fill_null(batch.topics.indices, len(names)).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(wrong[indices]).tolist():
                bad.setdefault(row, reasons[int(indices[row])])
        return Prepared(sorted(bad.items()), fragile)

    def _topic_reasons(self, names: pa.Array) -> dict[int, PublishError]:
        """Which topics of the dictionary are no place to publish to, and why; remembers the last dictionary."""
        buffer = names.buffers()[2]
        key = (buffer.address if buffer else 0, names.offset, len(names))
        if self._checked is not None and self._checked[0] == key:
            reasons: dict[int, PublishError] = self._checked[2]
            return reasons
        reasons = {}
        wrong = bad_subjects(names)
        topics = names.to_pylist()
        longest = self.capabilities.max_topic
        for i, topic in enumerate(topics):
            if wrong[i]:
                reasons[i] = BadTopic("null topic" if topic is None else why_bad(topic))
            elif len(topic) * 4 > longest and len(topic.encode()) > longest:
                reasons[i] = BadTopic(f"a topic of {len(topic.encode())} bytes; {longest} fit into a control line")
        fine = {i: t for i, t in enumerate(topics) if i not in reasons}
        reasons.update(self._placeless(fine))
        self._checked = (key, names, reasons)
        return reasons

    def _placeless(self, topics: dict[int, str]) -> dict[int, PublishError]:
        """Topics that no stream takes, or another one than the one named."""
        link = self._link
        if link is None or not link.owned or self._directory.blind or not topics:
            return {}
        new = [t for t in topics.values() if t not in self._owners]
        if new:
            timeout = self.settings.connect_timeout
            link.loop.run(self._find(link, new), 10 * timeout, "looking up the streams of the topics")
        if self._directory.blind:
            return {}
        named = self.settings.stream
        reasons: dict[int, PublishError] = {}
        for i, topic in topics.items():
            owner = self._owners[topic]
            if owner is None:
                reasons[i] = Refused(f"no stream takes topic {topic!r}", 503)
            elif named is not None and owner != named:
                reasons[i] = Refused(f"topic {topic!r} belongs to stream {owner!r}, not to {named!r}")
        if not any(owner is not None and named in (None, owner) for owner in self._owners.values()):
            known = ", ".join(sorted(self._directory.streams)) or "none"
            first = next(iter(reasons.values()))
            raise ConfigError(f"nothing to publish to: {first.info}; known streams: {known} (createStream makes one)")
        return reasons

    async def _find(self, link: Link, topics: list[str]) -> None:
        timeout = self.settings.connect_timeout
        directory = self._directory
        await st.look_up(link, directory, topics, timeout)
        if directory.blind:
            return
        homeless = [t for t in topics if directory.filters.owner(t) is None]
        if homeless and self.settings.create_stream:
            await self._create_for(link, homeless)
        for topic in topics:
            self._owners[topic] = directory.filters.owner(topic)
        used = {o for o in self._owners.values() if o is not None}
        found = [directory.streams[name] for name in sorted(used) if name in directory.streams]
        for stream in found:
            if self.settings.stream in (None, stream.name):
                self._judge(stream)
        self._decide(found)

    async def _create_for(self, link: Link, topics: list[str]) -> None:
        wanted: dict[str, set[str]] = {}
        for topic in topics:
            name, subject = st.derive_name(topic)
            wanted.setdefault(self.settings.stream or name, set()).add(subject)
        for name, subjects in wanted.items():
            if name in self._directory.streams:
                continue  # it exists and takes other topics: widening it is for its owner to do
            self._directory.add(await st.create(link, name, sorted(subjects), self.settings))
            self._directory.nowhere.difference_update(topics)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        link = self._link
        if link is None or link.closed:
            raise ClientClosed("the bridge is not open")
        room = min(MAX_UNWRITTEN - link.unwritten, _CHUNK)
        attached_soon = not link.owned and not link.up and link.client.is_connected
        if room <= 0 or not (link.up or attached_soon) or not len(batch):
            self._starved = True
            return 0
        ends = np.cumsum(batch.sizes())
        n = max(1, int(np.searchsorted(ends, room, "right")))
        if self.mode == "batch":
            assert self._batching is not None
            taken = self._batching.send(batch.slice(0, n), first_token, self._home)
            self._starved = taken < n
            self._remember(batch, first_token, taken)
            return taken
        part = batch.slice(0, n) if n < len(batch) else batch
        self._remember(part, first_token, n)
        self._write(link, part, first_token)
        return n

    def _write(self, link: Link, part: MessageBatch, first_token: int) -> None:
        wire_token = self._base + first_token
        link.next_token = wire_token + len(part)
        if not link.fast:
            link.publish(_rows(part, link.inbox.decode(), wire_token, self.mode != "none"))
            if self.mode == "none":
                self._answer_none(first_token, len(part))
            return
        assert self._framer is not None
        frames = self._framer.frames(part, wire_token)
        if self.mode == "none":
            self._none.append((frames.size, np.arange(first_token, first_token + len(part))))
        link.write(frames)

    def _answer_none(self, first: int, n: int) -> None:
        self._mail.acks(Acks(np.arange(first, first + n), None, None, None, time.monotonic()))

    def _remember(self, part: MessageBatch, first_token: int, n: int) -> None:
        self._last_token = first_token + n - 1
        self._sent.append((first_token, part.topics.slice(0, n)))
        while len(self._sent) > 1 and self._sent[1][0] < first_token - _REMEMBERED:
            self._sent.popleft()

    def _home(self, topic: str) -> str:
        return self._owners.get(topic) or self.settings.stream or ""

    def flush(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        if self.mode == "batch" and self._batching is not None and self._link is not None and self._link.up:
            self._batching.end_all()

    def poll(self, timeout: float, want: int = 1) -> Polled:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        if self._batching is not None and self.mode == "batch":
            return self._batching.poll(timeout, want)
        return self._mail.take(timeout, want)

    def close(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        link, self._link = self._link, None
        if link is None:
            return
        link.consumer = None
        link.loop.forget(self._mail.died)
        if link.owned:
            POOL.give_back(self.settings, link)
        elif link.loop.alive:
            with contextlib.suppress(MamaError):
                link.loop.soon(lambda: link.loop.loop.create_task(link.release()))

    # --- what the loop tells (its thread) ----------------------------------------------------------------------

    def on_acks(self, columns: list[Columns]) -> None:
        now = time.monotonic()
        for c in columns:
            tokens = np.concatenate(c.tokens) - self._base
            sequences, duplicates = np.concatenate(c.sequences), np.concatenate(c.duplicates)
            if tokens.min() < 0:  # answers to the lease before this one
                mine = tokens >= 0
                tokens, sequences, duplicates = tokens[mine], sequences[mine], duplicates[mine]
            if len(tokens):
                self._mail.acks(Acks(tokens, sequences, duplicates if duplicates.any() else None, c.stream, now))

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        link = self._link
        if link is None:
            return
        last = subject[len(link.inbox) :]
        if not last.isdigit():
            if self._batching is not None:
                self._batching.on_reply(subject, reply)
            return
        token = int(last) - self._base
        now = time.monotonic()
        if token < 0:
            return
        tokens = np.array([token])
        if isinstance(reply, Stored):
            duplicate = np.array([True]) if reply.duplicate else None
            self._mail.acks(Acks(tokens, np.array([reply.sequence]), duplicate, reply.stream, now))
        elif isinstance(reply, PublishError):
            self._mail.refusals(Refusals(tokens, reply, now))

    def on_denied(self, kind: str, subject: str, exact: bool) -> None:
        now = time.monotonic()
        if kind != "publish":
            error = not_entitled(subject)
            self._mail.event(
                BridgeEvent(EventKind.CLOSED, f"no permission to subscribe to {subject!r}", now, None, error)
            )
            return
        error = not_entitled(subject)
        found = []
        for i, (first, topics) in enumerate(list(self._sent)):
            names = topics.dictionary.to_pylist()
            mine = [j for j, n in enumerate(names) if n is not None and (n if exact else n.lower()) == subject]
            if mine:
                rows = np.flatnonzero(np.isin(topics.indices.to_numpy(zero_copy_only=False), mine))
                found.append(rows + first)
                if len(rows) and i < len(self._sent):
                    self._sent[i] = (first, _without(topics, mine))
        if found and len(tokens := np.concatenate(found)):
            self._mail.refusals(Refusals(tokens, error, now))

    def on_unsent(self, token: int, error: BaseException) -> None:
        translated = from_client(error)
        if not isinstance(translated, PublishError):
            if isinstance(translated, Unavailable):
                return  # the connection is going: DISCONNECTED or the time-out settles it
            translated = Refused(str(translated))
        self._mail.refusals(Refusals(np.array([token - self._base]), translated, time.monotonic()))

    def on_disconnected(self) -> None:
        self._none.clear()
        self._mail.event(BridgeEvent(EventKind.DISCONNECTED, "the connection to NATS was lost", time.monotonic()))

    def on_reconnected(self) -> None:
        if self._batching is not None and self._batching.resolve(self._reconnected):
            return
        self._reconnected()

    def _reconnected(self) -> None:
        self._mail.event(BridgeEvent(EventKind.RECONNECTED, "connected to NATS again", time.monotonic()))

    def on_closed(self, info: str) -> None:
        text = f"the connection to NATS was closed for good: {info}"
        self._mail.event(BridgeEvent(EventKind.CLOSED, text, time.monotonic(), error=Refused(text)))

    def on_written(self, size: int) -> None:
        left = size
        while self._none and left >= self._none[0][0]:
            taken, tokens = self._none.popleft()
            left -= taken
            self._mail.acks(Acks(tokens, None, None, None, time.monotonic()))
        if self._starved and self._link is not None and self._link.unwritten < MAX_UNWRITTEN // 2:
            self._starved = False
            self._mail.wake()


def _without(topics: pa.DictionaryArray, mine: list[int]) -> pa.DictionaryArray:
    """The same with some topics forgotten: their sends are answered, and are to be answered once."""
    indices = topics.indices.to_numpy(zero_copy_only=False)
    mask = pa.array(np.isin(indices, mine))
    return pa.DictionaryArray.from_arrays(
        pc.if_else(mask, pa.scalar(None, topics.indices.type), topics.indices), topics.dictionary
    )


class _Header(str):
    """Key of a header in the client's dictionary, which has one value a key: each value gets a key of its own."""

    _name: str

    def __new__(cls, name: str, k: int) -> _Header:
        made = super().__new__(cls, f"{name} {k}")
        made._name = name
        return made

    def strip(self, chars: str | None = None, /) -> str:
        """What the client writes."""
        return self._name


def _rows(part: MessageBatch, inbox: str, token: int, reply: bool) -> list[Row]:
    """One tuple a message, for the public calls."""
    n = len(part)
    ids: list[Any] = [None] * n if part.ids is None else part.ids.to_pylist()
    pairs: list[Any] = [None] * n if part.headers is None else part.headers.to_pylist()
    rows: list[Row] = []
    for i, (topic, payload) in enumerate(zip(part.topics.to_pylist(), part.payloads.to_pylist(), strict=True)):
        headers: dict[str, str] = {hd.MSG_ID: ids[i]} if ids[i] is not None else {}
        for name, values in pairs[i] or ():
            headers.update((_Header(name, k), value) for k, value in enumerate(values or ()))
        to = f"{inbox}{token + i:0{TOKEN_WIDTH}d}" if reply else ""
        rows.append((token + i, topic, payload, to, headers or None))
    return rows


def _hook(client: Any, link: Link) -> None:
    """Hear of the connection's events beside whoever else does."""

    def both(theirs: Any, ours: Any) -> Any:
        async def call(*args: Any) -> None:
            await ours(*args)
            if theirs is not None:
                await theirs(*args)

        return call

    async def on_error(error: Exception) -> None:
        link._on_error(error)

    client._disconnected_cb = both(client._disconnected_cb, link._on_disconnected)
    client._reconnected_cb = both(client._reconnected_cb, link._on_reconnected)
    client._closed_cb = both(client._closed_cb, link._on_closed)
    client._error_cb = both(client._error_cb, on_error)
