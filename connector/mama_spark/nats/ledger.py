"""Keeps markers in a JetStream stream, and reads the message ids of other streams.

The stream of the markers keeps the last message of each subject, ``<stream>.<key>``. Markers are read from its leader,
and written with the header ``Nats-Expected-Last-Subject-Sequence``: refused if the marker has changed meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mama_spark.contracts.batch_ledger import MARKERS_KEPT, Marker, MarkerChanged, StoredIds
from mama_spark.contracts.errors import ConfigError, ExpectationFailed, MamaError, PublishError, Unavailable
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.record_log import Bounds
from mama_spark.contracts.topics import covers

from .connection.socket_connection import SocketConnection
from .jetstream.answers import NO_MESSAGE, NO_STREAM, ApiError, ApiForbidden, StreamInfo
from .jetstream.client import message_of
from .jetstream.server_probe import SentTo, why_unfenced
from .protocol.headers import EXPECTED_LAST, EXPECTED_STREAM
from .protocol.records import DeliveryBuffer, DeliveryNumbers, records_of
from .publish.stream_router import StreamRouter
from .read.logs import NatsLogs
from .read.range_reader import SequenceRange
from .read.retention import require_log, require_newest
from .read.stream_log import NatsLog
from .settings import NatsSettings

logger = logging.getLogger("mama_spark")

ApiAnswer = dict[str, Any] | MamaError
_LONGEST_TOPIC = 4096
_ID = f"\r\n{MSG_ID}: ".encode()


class NatsBatchLedger:
    """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`.

    :param timeout: seconds without an answer before :class:`~mama_spark.contracts.errors.Unavailable`
    """

    def __init__(self, settings: NatsSettings, timeout: float) -> None:
        self._settings, self._place = settings, settings.batches_stream
        self._logs = NatsLogs(settings, timeout)
        self._router = StreamRouter(settings, logger.info)
        self._by_name: dict[str, NatsLog] = {}

    def __repr__(self) -> str:
        return f"<NatsBatchLedger {self._place}, {self._logs!r}>"

    def open(self) -> None:
        """Connect; the first :meth:`marker` makes the stream."""
        self._logs.connect()
        try:
            connection = self._logs.connection()
            self._router.check(connection)
            self._check_place(connection)
        except BaseException:
            self.close()
            raise

    def _check_place(self, connection: SocketConnection) -> None:
        """Check the stream of the markers. ConfigError: others have made it, and it would lose some."""
        known = f"whether {self._place} keeps markers"
        if connection.cached(known) is not None:
            return
        try:
            info = StreamInfo.of(self._logs.api.request(f"STREAM.INFO.{self._place}"))
        except ApiForbidden:
            connection.cache(known, True)
            return
        except ApiError:
            return  # a missing stream will be made
        try:
            require_newest(info)
            if not any(covers(subject, f"{self._place}.>") for subject in info.subjects):
                raise ConfigError(f"stream {self._place!r} does not take {self._place}.>")
        except ConfigError as e:
            raise ConfigError(f"option exactlyOnce cannot keep its markers (option batchesStream): {e}") from e
        age = info.limit("max_age")
        if age is not None and age < MARKERS_KEPT * 1_000_000_000:
            logger.warning(
                "stream %r keeps markers of exactlyOnce for %g s (max_age): a repetition that comes later stores its "
                "rows again", self._place, age / 1e9,
            )  # fmt: skip
        connection.cache(known, True)

    def close(self) -> None:
        self._logs.close()

    # --- streams -------------------------------------------------------------------------------------------------

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        rejected = self._router.rejections(self._logs.connection(), topics, _LONGEST_TOPIC)
        if self._router.cache.lookup_denied:
            raise ConfigError(
                "option exactlyOnce: no permission to look up the stream of a topic "
                f"({self._settings.api_prefix}STREAM.NAMES, STREAM.INFO.*)"
            )
        names = [
            None if i in rejected else self._router.stream_for(topic) or None
            for i, topic in enumerate(topics.to_pylist())
        ]
        for name in {name for name in names if name is not None}:
            self._check(name)
        return names

    def _check(self, name: str) -> None:
        """Check a stream of rows. ConfigError: its stored messages cannot be read back."""
        known = self._router.cache.streams.get(name)
        if known is not None:
            require_log(name, known.retention)
            return
        try:
            self._log(name)
        except ConfigError as e:
            raise ConfigError(
                f"option exactlyOnce: the topics lead to stream {name!r}, which cannot be read from here. In another "
                f"account, publish there, or name its API (option jsApiPrefix): {e}"
            ) from e

    def _log(self, name: str) -> NatsLog:
        if name not in self._by_name:
            self._by_name[name] = self._logs.log(name)
        return self._by_name[name]

    # --- markers -------------------------------------------------------------------------------------------------

    def marker(self, key: str) -> Marker:
        return self._ask([key], [])[0][0]

    def markers_and_bounds(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        """Asks for all at once."""
        markers, infos = self._ask(keys, [stream])
        info = infos[0]
        there = None if isinstance(info, MamaError) else StreamInfo.of(info)  # else it is asked again for the error
        self._by_name[stream] = log = NatsLog(self._logs, stream, there)
        return markers, log.opened

    def _ask(self, keys: Sequence[str], streams: Sequence[str]) -> tuple[list[Marker], list[ApiAnswer]]:
        """Markers, and the server's answer for each stream; creates the stream of the markers if it is missing."""
        gets = [(f"STREAM.MSG.GET.{self._place}", {"last_by_subj": f"{self._place}.{key}"}) for key in keys]
        infos: list[tuple[str, dict[str, Any] | None]] = [(f"STREAM.INFO.{name}", None) for name in streams]
        answers = self._logs.api.request_all([*gets, *infos])
        if any(isinstance(answer, ApiError) and answer.code == NO_STREAM for answer in answers[: len(keys)]):
            self._create()
            answers = self._logs.api.request_all([*gets, *infos])
        return [_marker(answer) for answer in answers[: len(keys)]], answers[len(keys) :]

    def markers_below(self, key: str) -> list[Marker]:
        found: list[Marker] = []
        which: dict[str, Any] = {"seq": 0, "next_by_subj": f"{self._place}.{key}.*"}
        while True:
            answer = self._logs.api.request_all([(f"STREAM.MSG.GET.{self._place}", which)])[0]
            marker = _marker(answer)
            if not marker.revision:
                return found
            found.append(marker)
            which["seq"] = marker.revision + 1

    def why_unfenced(self, stream: str, server: str) -> str:
        topic = self._router.topic_of_each_stream()[stream]
        return why_unfenced(self._settings, SentTo.of(server), {stream: topic}).get(stream, "")

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        subject, headers = f"{self._place}.{key}", self._expecting(revision)
        with contextlib.suppress(MamaError):
            connection = self._logs.connection()
            if connection.up:
                connection.publish(subject, value, headers=headers)  # if it is lost, the next attempt waits a little

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        subject, headers = f"{self._place}.{key}", self._expecting(revision)
        try:
            return self._logs.api.publish(subject, value, headers)
        except ExpectationFailed as e:
            raise MarkerChanged(f"the marker {subject} has changed") from e
        except ApiForbidden as e:
            raise ConfigError(f"option exactlyOnce: {e}, which stores a marker; allow {self._place}.>") from e
        except PublishError as e:
            if e.retryable:
                raise Unavailable(f"the marker {subject} is not stored: {e}") from e
            raise ConfigError(f"option exactlyOnce: the marker {subject} is refused: {e}") from e

    def _expecting(self, revision: int) -> dict[str, str]:
        return {EXPECTED_STREAM: self._place, EXPECTED_LAST: str(revision)}

    def _create(self) -> None:
        """Create the stream with as many replicas as the streams of the topics have."""
        replicas = max((stream.replicas for stream in self._router.cache.streams.values()), default=1)
        config: dict[str, Any] = {
            "name": self._place,
            "description": "where batches of mama-spark began (option exactlyOnce)",
            "subjects": [f"{self._place}.>"],
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_age": MARKERS_KEPT * 1_000_000_000,
            "duplicate_window": 1_000_000_000,
            "discard": "old",
        }
        try:
            self._logs.api.request(f"STREAM.CREATE.{self._place}", config)
        except (ApiForbidden, ApiError) as e:
            raise ConfigError(
                f"option exactlyOnce needs the stream {self._place!r}, which is missing and cannot be made: {e}. Make "
                f"it with the subject {self._place}.>, one message a subject and file storage, or name another one "
                "(option batchesStream)"
            ) from e

    # --- reading back --------------------------------------------------------------------------------------------

    def bounds(self, stream: str) -> Bounds:
        return self._log(stream).bounds() if stream in self._by_name else self._log(stream).opened

    def decided_last(self, stream: str, patience: float | None = None) -> int:
        return self._logs.decided_last(stream, self._router.topic_of_each_stream()[stream], patience)

    def read(self, stream: str, after: int, up_to: int, prefix: bytes, *, records: bool = False) -> Iterator[StoredIds]:
        def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> StoredIds:
            return find_ids(buffer, numbers, prefix, up_to, records=records)

        return self._log(stream).read_as(SequenceRange(after, up_to, [], payloads=records), convert)

    def missing(self, stream: str, after: int, up_to: int) -> list[tuple[int, int]]:
        return self._log(stream).missing(after, up_to)


def _marker(answer: ApiAnswer) -> Marker:
    if isinstance(answer, ApiForbidden):
        raise ConfigError(f"option exactlyOnce: {answer}; the user must be allowed to read markers there") from answer
    if isinstance(answer, ApiError) and answer.code == NO_MESSAGE:
        return Marker(0, b"")
    if isinstance(answer, MamaError):
        raise answer
    found = message_of(answer)
    return Marker(found.sequence, found.payload)


def find_ids(
    buffer: DeliveryBuffer, numbers: DeliveryNumbers, prefix: bytes, up_to: int, *, records: bool
) -> StoredIds:
    """Messages whose id begins with ``prefix``, up to a sequence. Blocks of other batches, and of other publishers, are
    thrown away by one search each, before anything is parsed.

    :param records: records with payloads and headers
    """
    n = int(np.searchsorted(numbers.sequences, up_to, "right"))
    blocks = buffer.blocks[:n] if n < len(buffer.blocks) else buffer.blocks
    wanted = re.compile(re.escape(_ID) + b"(" + re.escape(prefix) + rb"[^\r]*)\r\n")
    ids: list[bytes] = wanted.findall(b"".join(filter(None, blocks)))
    rows = np.arange(n)
    if len(ids) != n:  # some are of others: which
        each = [(i, found) for i, block in enumerate(blocks) if block and (found := wanted.search(block)) is not None]
        rows, ids = np.array([i for i, _ in each], np.int64), [found[1] for _, found in each]
    taken = None
    if records and len(rows):
        taken = records_of(buffer, numbers).take(rows)
    return StoredIds(numbers.sequences[rows], ids, taken, n)
