"""Finds the stream that takes each topic, and checks that a publisher can use it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from mama_spark.contracts.errors import BadTopic, ConfigError, MamaError, PublishError, Rejected
from mama_spark.contracts.message import rows_by_stream
from mama_spark.contracts.topics import unpublishable, why_unpublishable

from ..connection.socket_connection import SocketConnection
from ..jetstream import streams as st
from ..jetstream.answers import ApiForbidden, StreamInfo
from ..jetstream.client import JetStream
from ..jetstream.set_members import prepare_members
from ..protocol import key_value
from ..settings import NatsSettings
from ..stream_set import StreamSet
from ..subjects import is_request
from .ack_mode import AckModeChoice, stream_text
from .fences import RowsOfStream
from .missing_acks import MOST_STREAMS, explain

_CUT_OFF = 20.0  #: seconds for which a leader without a majority may go on to take messages
_UNMAPPED = "publish to topics that are not mapped so"


class StreamRouter:
    """Topics and streams of one bridge."""

    def __init__(self, settings: NatsSettings, warn: Callable[[str], None]) -> None:
        self.settings, self._warn = settings, warn
        self.acks = AckModeChoice(settings, warn)
        self.cache = st.StreamCache()
        self.set = None if settings.streams is None else StreamSet(settings.streams)
        self._owners: dict[str, str | None] = {}
        self._right: set[str] = set()
        self._checked: Any = None

    def stream_for(self, topic: str) -> str:
        """Name of the stream that takes ``topic``; empty = unknown."""
        return self._owners.get(topic) or self.settings.stream or ""

    def streams_published_to(self) -> list[str]:
        named = {self.settings.stream} if self.settings.stream else set(self._owners.values())
        return sorted(name for name in named if name)

    def duplicate_window(self) -> float | None:
        """Shortest duplicate window of the known streams, in seconds; None = no stream is known."""
        known = (self.cache.streams.get(name) for name in self.streams_published_to())
        return min((stream.duplicate_window for stream in known if stream is not None), default=None)

    def topic_of_each_stream(self) -> dict[str, str]:
        """A topic, as sent, by known stream."""
        topics = {stream: topic for topic, stream in self._owners.items() if stream}
        if self.set is None or not topics:
            return topics
        subjects = self.set.route(pa.array(list(topics.values())).dictionary_encode())[0]
        return dict(zip(topics, subjects.to_pylist(), strict=True))

    def rows_by_stream(self, topics: pa.DictionaryArray) -> Iterator[RowsOfStream]:
        """Rows by stream; a topic whose stream is unknown counts as a stream."""
        names = [self.stream_for(topic) or topic for topic in topics.dictionary.to_pylist()]
        for name, rows in rows_by_stream(topics, names):
            first = topics.take(pa.array(rows[:1]))
            sent = first if self.set is None else self.set.route(first)[0]
            yield RowsOfStream(name, sent[0].as_py(), rows)

    def stray(self, stream: str, topics: Callable[[], Iterable[str]]) -> ConfigError | None:
        """Error that ends the write if this stream should not have acknowledged messages with these ``topics``."""
        if stream not in self._right:
            wanted = self.streams_published_to() if self.settings.exactly_once or self.settings.stream else []
            if wanted and stream not in wanted:
                return self._is_stray(stream, wanted)
            self._right.add(stream)
        if self.settings.exactly_once and self.cache.led:
            wanted = sorted({self._owners.get(topic) or stream for topic in topics()} - {stream})
            return self._is_stray(stream, wanted) if wanted else None
        return None

    def _is_stray(self, stream: str, wanted: list[str]) -> ConfigError:
        return ConfigError(
            f"stream {stream!r} has stored rows of topics that belong to {_join(wanted)}, where "
            f"{'option stream wants them' if self.settings.stream else 'exactlyOnce would look for them'}. The "
            f"account maps a topic by weights, or since a moment ago: {_UNMAPPED}. "
            f"Rows that are in {stream!r} would be stored again by a repetition"
        )

    def explain_missing_acks(
        self, last_sequence: Callable[[str], int], find: Callable[[str], Iterable[str]], server: str
    ) -> str:
        """See :func:`.missing_acks.explain`; ``find`` asks for the streams of a topic."""
        try:
            return explain(last_sequence, server, self.streams_published_to() or self._streams_of_last_topics(find))
        except MamaError as e:
            return f"{server} acknowledges nothing, and does not say why: {e}"

    def _streams_of_last_topics(self, find: Callable[[str], Iterable[str]]) -> list[str]:
        """Streams of the last topics, which a bridge over a caller's client does not look up before it publishes."""
        topics = [] if self._checked is None else self._checked[1].to_pylist()[:MOST_STREAMS]
        found: set[str] = set()
        with contextlib.suppress(MamaError):  # without an answer they stay unknown
            for topic in filter(None, topics):
                found.update(find(topic))
        return sorted(found)

    def dedup_is_safe(self, stream: str) -> bool:
        return self.acks.dedup_is_safe(self.cache.streams.get(stream))

    def is_replicated(self, topic: str) -> bool:
        known = self.cache.streams.get(self.stream_for(topic))
        return known is not None and known.replicas > 1

    def describe(self) -> list[str]:
        return [
            f"{s.name} takes {', '.join(s.subjects) or 'nothing'}; fast ingest {'on' if s.batched else 'off'}, "
            f"duplicates recognised for {s.duplicate_window:g} s"
            for s in self.cache.streams.values()
        ]

    # --- when the bridge opens -------------------------------------------------------------------------------

    def check(self, connection: SocketConnection) -> None:
        """Check JetStream and the stream of the settings. ConfigError: one is missing, or no publisher can use it."""
        api = jetstream_of(connection, self.settings)
        cache = connection.cached("directory")
        if cache is None:
            cache = st.StreamCache()
            st.check_jetstream(api, cache)
            connection.cache("directory", cache)
        cache.reuse()
        self.cache = cache
        if self.set is not None:
            self._check_set(connection, self.set)
            return
        name = self.settings.stream
        if cache.lookup_denied:
            self._warn_unchecked("INFO", name)
            return
        if name is None:
            return
        st.refresh(api, cache, [name])
        stream = cache.streams.get(name) or st.stream_info(api, cache, name)
        if stream is not None:
            if stream.subjects:  # else no topic belongs to it, which the check of the topics reports
                self._validate(stream)
                self._choose_mode(connection, [stream])
        elif name in cache.info_denied:
            self._warn_unchecked(f"STREAM.INFO.{name}", name)
        elif not self.settings.create_stream:
            try:
                known = f"existing streams: {_join(st.stream_names(api))}"
            except ApiForbidden:
                known = "no permission to list those that exist"
            raise ConfigError(f"there is no stream {name!r}; {known}")

    def _check_set(self, connection: SocketConnection, streams: StreamSet) -> None:
        """Check the set anew for each bridge: a writer must not go on with a set that has grown."""
        members = prepare_members(jetstream_of(connection, self.settings), self.cache, streams, self.settings)
        for stream in members:
            self._validate(stream)
        self._choose_mode(connection, members)

    def _warn_unchecked(self, subject: str, stream: str | None) -> None:
        """Warn that the permissions hide a stream's settings, and go on where that is safe."""
        self._warn(f"no permission to ask {self.settings.api_prefix}{subject}: {stream_text(stream)} is not checked")
        self._require_safe_dedup(stream)

    def _validate(self, stream: StreamInfo) -> None:
        """Check a stream, with warnings. ConfigError: a publisher that waits for acknowledgements cannot use it."""
        if stream.no_ack and self.acks.mode != "none":
            raise ConfigError(f"stream {stream.name!r} never acknowledges (no_ack): use ackMode=none or change it")
        if self.settings.ack_mode == "batch" and not stream.batched:
            raise ConfigError(f"stream {stream.name!r} does not allow fast ingest (allow_batched): ackMode=message")
        self._require_safe_dedup(stream.name)
        if stream.retention == "interest" and not stream.consumers:
            self._warn(f"stream {stream.name!r} keeps messages only for consumers, and has none: all will be dropped")
        known = stream.duplicate_window
        longest = (stream.limit("max_age") or 1 << 62) / 1e9  # the server takes no window above it
        wanted = min(st.duplicate_window(self.settings), longest)
        only = f"stream {stream.name!r} recognises duplicates for {known:g} s only"
        if self.settings.exactly_once and stream.replicas > 1 and known < _CUT_OFF:
            self._warn(
                f"{only}, and a leader that is cut off takes messages for up to {_CUT_OFF:g} s: a row may be stored "
                f"twice in spite of exactlyOnce. Make its duplicate window {_CUT_OFF:g} s or longer"
            )
        elif self.settings.exactly_once and known < wanted:
            self._warn(
                f"{only}: a process that is suspended for {self.settings.wait_timeout:g} s longer than that may store "
                f"a row twice in spite of exactlyOnce. Make its duplicate window {wanted:g} s or longer"
            )
        elif self.settings.dedup and known < wanted:
            self._warn(
                f"{only}, and resends go on for {self.settings.retry_deadline:g} s: late ones may be stored twice. "
                f"Make its duplicate window {wanted:g} s, or shorten retryDeadline"
            )

    def _require_safe_dedup(self, name: str | None) -> None:
        self.acks.require_safe_dedup(name, self.cache.streams.get(name or ""))

    def _choose_mode(self, connection: SocketConnection, streams: list[StreamInfo]) -> None:
        self.acks.choose(connection.info.version_numbers, streams)

    # --- when topics come ------------------------------------------------------------------------------------

    def rejections(self, connection: SocketConnection | None, names: pa.Array, longest: int) -> dict[int, PublishError]:
        """Topics of a dictionary that cannot be published to, and why; cached for the last dictionary.

        :param longest: bytes of a topic that fit into a control line
        :raises ConfigError: no stream takes any of the topics seen so far
        """
        buffer = names.buffers()[2]
        key = (buffer.address if buffer else 0, names.offset, len(names))
        if self._checked is not None and self._checked[0] == key:
            known: dict[int, PublishError] = self._checked[2]
            return known
        rejections: dict[int, PublishError] = {}
        wrong = unpublishable(names)
        topics = names.to_pylist()
        for i, topic in enumerate(topics):
            if topic is None:
                rejections[i] = BadTopic("null topic")
            elif wrong[i] and (fault := why_unpublishable(topic)) is not None:
                rejections[i] = BadTopic(fault)
            elif is_request(topic, self.settings.api_prefix):
                rejections[i] = BadTopic(f"topic {topic!r} is a request to the NATS server, which no stream stores")
            elif len(topic) * 4 > longest and len(topic.encode()) > longest:
                rejections[i] = BadTopic(f"a topic of {len(topic.encode())} bytes; {longest} fit into a control line")
        fine = {i: t for i, t in enumerate(topics) if i not in rejections}
        rejections.update(self._unroutable(connection, fine))
        self._checked = (key, names, rejections)
        return rejections

    def _unroutable(self, connection: SocketConnection | None, topics: dict[int, str]) -> dict[int, PublishError]:
        """Topics that no stream takes, or another stream than that of the settings."""
        if self.set is not None:
            new = [t for t in topics.values() if t not in self._owners]
            self._owners |= zip(new, self.set.streams_of(new), strict=True)
            return {}
        if connection is None or self.cache.lookup_denied or not topics:
            return {}
        if self.settings.bucket is not None:  # of another domain or account, whose streams may be out of reach
            near, stream = self.settings.api_prefix, key_value.stream_of(self.settings.bucket)
            far = [t for t in topics.values() if ".$KV." in t]
            self._owners |= {t: stream if t.startswith(near) else "" for t in far}
        new = [t for t in topics.values() if t not in self._owners]
        if new:
            self._find(connection, new)
        if self.cache.lookup_denied:
            return {}
        named = self.settings.stream
        rejections: dict[int, PublishError] = {}
        for i, topic in topics.items():
            owner = self._owners[topic]
            if owner is None:
                rejections[i] = Rejected(f"no stream takes topic {topic!r}", 503)
            elif named is not None and owner != named:
                rejections[i] = Rejected(f"topic {topic!r} belongs to stream {owner!r}, not to {named!r}")
        if not any(owner is not None and named in (None, owner) for owner in self._owners.values()):
            if None not in self._owners.values():
                raise ConfigError(
                    f"nothing to publish to: {next(iter(rejections.values())).info}; correct option stream"
                )
            streams = sorted(self.cache.streams)
            known = f"; streams that were found: {_join(streams)}" if streams else ""
            first = next(iter(rejections.values()))
            name = named or st.derive_name(topics[min(topics)])[0]
            advice = st.advice_to_create(jetstream_of(connection, self.settings), name)
            raise ConfigError(f"nothing to publish to: {first.info}{known}; {advice}")
        return rejections

    def _find(self, connection: SocketConnection, topics: list[str]) -> None:
        cache, api = self.cache, jetstream_of(connection, self.settings)
        st.look_up(api, cache, topics)
        if cache.lookup_denied:
            self._warn_unchecked("STREAM.NAMES", None)
            return
        fitting = {self.settings.stream or cache.filters.owner(t) for t in topics} - {None}
        unsure = {t for t in topics if cache.filters.owner(t) not in fitting}
        traced = [t for t in topics if t in unsure or self._must_know_streams()]
        away, untold = st.led_away(api, cache, traced)
        st.ask_server(api, cache, away + [t for t in untold if t in unsure or self.settings.exactly_once])
        self._refuse_weights(topics)
        unrouted_topics = [t for t in topics if cache.filters.owner(t) is None]
        if unrouted_topics and self.settings.create_stream:
            self._create_for(api, unrouted_topics)
        for topic in topics:
            self._owners[topic] = cache.filters.owner(topic)
        used = {o for o in self._owners.values() if o is not None}
        found = [cache.streams[name] for name in sorted(used) if name in cache.streams]
        for stream in found:
            if self.settings.stream in (None, stream.name):
                self._validate(stream)
        if info_denied := sorted(used & cache.info_denied):
            self._warn_unchecked(f"STREAM.INFO.{info_denied[0]}", info_denied[0])
        else:
            self._choose_mode(connection, found)

    def _must_know_streams(self) -> bool:
        """Whether topics are resolved before sends: ``exactlyOnce`` searches in the stream, a stream other than the
        named one is refused, and a fast batch holds messages of one stream."""
        s = self.settings
        return s.exactly_once or s.stream is not None or self.acks.mode == "batch" or self.acks.may_become_batches

    def _refuse_weights(self, topics: list[str]) -> None:
        """Check that topics lead to one stream each. ConfigError: one leads to several, where one is required."""
        split = next((t for t in topics if len(self.cache.led.get(t, ())) > 1), None)
        if split is None or not self._must_know_streams():
            return
        if self.settings.exactly_once or self.settings.stream or self.settings.ordered or self.acks.mode == "batch":
            streams = " and ".join(map(repr, sorted(self.cache.led[split])))
            raise ConfigError(
                f"topic {split!r} leads to the streams {streams}: the account maps it by weights. With the options "
                f"exactlyOnce, stream, order=partition and ackMode=batch a topic leads to one stream: {_UNMAPPED}"
            )
        self.acks.keep_messages()

    def _create_for(self, api: JetStream, topics: list[str]) -> None:
        wanted: dict[str, set[str]] = {}
        for topic in topics:
            name, subject = st.derive_name(topic)
            wanted.setdefault(self.settings.stream or name, set()).add(subject)
        for name, subjects in wanted.items():
            if name in self.cache.streams:
                continue  # it exists with other subjects: its owner must add the topic
            self.cache.add(st.create(api, name, sorted(subjects), self.settings))
            self.cache.unrouted.difference_update(topics)


def jetstream_of(connection: SocketConnection, settings: NatsSettings) -> JetStream:
    return JetStream(lambda: connection, 2 * settings.connect_timeout, settings.connect_timeout)


def _join(names: list[str]) -> str:
    return ", ".join(names) or "none"
