"""A recorder in a thread that writes into the log of an in-memory broker, and a scripted publisher of market data."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pyarrow as pa
from mama_spark.cli.commands.record import log_options
from mama_spark.contracts.record_log import RecordLog
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.status import MsgStatus, MsgType, SubscriptionMsgType
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.recorder.record_source import MamaRecordSource
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.openmama.rows import TYPE
from mama_spark.openmama.rows.openmama_rows import OpenMamaColumns
from mama_spark.openmama.wire import market_data
from mama_spark.openmama.wire.dictionary import DictionaryEntry, dictionary_message
from mama_spark.openmama.wire.frame_filter import ReceivedFrame
from mama_spark.openmama.wire.frames import FrameType
from mama_spark.openmama.wire.market_data import RECAPS, MarketDataRequest, Stamp, read_request, stamped
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.options import SinkOptions, SubscribeOptions
from mama_spark.packing.pack_headers import rows_of_messages
from mama_spark.packing.unpacker import unpack
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.recording.recorder import Recorder
from mama_spark.registry import log_bridge, publisher_bridge

DICTIONARY = [DictionaryEntry(237, "wBidPrice", FieldType.F64)]


class RecordedLog:
    """The log of an in-memory broker."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self.url = f"memory://{self.name}"

    @property
    def options(self) -> SinkOptions:
        """Of a publisher of its records."""
        return SinkOptions.parse({"url": self.url, "topic": "any"})

    def log(self) -> RecordLog:
        return MemoryLogs(self.name).log(self.name)

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """What ``mamasub`` shows of its records."""
        log = self.log()
        bounds, columns = log.bounds(), OpenMamaColumns(TYPE)
        rows = []
        for records in log.read(0, bounds.last):
            found = unpack(records)
            topics = records.topics.cast(pa.string()).take(pa.array(found.records))
            made = columns.columns(found.values, topics, records.sequences[found.records])
            rows += made["mama"].to_pylist()
        return [row for row in rows if not kinds or row["kind"] in kinds]

    def records(self) -> int:
        """How many messages it has, packed ones each counted once."""
        return self.log().bounds().last

    def numbers(self, topic: str, *kinds: str) -> list[int]:
        return [row["seq_num"] for row in self.rows(*kinds or ("message",)) if row["topic"] == topic]

    def close(self) -> None:
        MemoryBroker.forget(self.name)


class NatsRecordedLog(RecordedLog):
    """A stream of NATS."""

    def __init__(self, server: NatsServer, stream: str) -> None:
        self.name, self.url = stream, f"{server.url}/{stream}"
        self._bridge = log_bridge(SubscribeOptions.parse({"url": server.url, "stream": stream}), 10.0)
        self._bridge.open()

    @property
    def options(self) -> SinkOptions:
        return log_options({"url": self.url, "createStream": "true"})

    def log(self) -> RecordLog:
        return self._bridge.log(self.name)

    def close(self) -> None:
        self._bridge.close()


@contextmanager
def recorded_log() -> Iterator[RecordedLog]:
    log = RecordedLog()
    try:
        yield log
    finally:
        log.close()


@contextmanager
def recording(log: RecordedLog, url: str, **settings: Any) -> Iterator[Recorder]:
    """A running recorder; its end is in order."""
    options = log.options
    writer = ResilientPublisher(
        lambda: publisher_bridge(options), on_rejected=lambda b, e: made.refused(b, e), rows_of=rows_of_messages
    )
    given = OpenMamaRecorderSettings.of({"url": url, "report": "off", **settings})
    source = MamaRecordSource(given)
    source.resume(lambda work: work(log.log()))
    made = Recorder(source, writer)
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            made.run(stop.is_set)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join(60)
        writer.close()
    assert not failures, failures
    assert not thread.is_alive()


class MarketDataScript:
    """Publishes one source as real publishers do: images and recaps on request, updates as it is told."""

    def __init__(self, peer: OpenMamaPeer, source: str = "OM", sender: int = 77) -> None:
        self.peer, self.source, self.sender = peer, source, sender
        self.numbers: dict[str, int] = {}
        self.requests: list[tuple[MarketDataRequest, FrameType]] = []
        self.refuses: dict[str, MsgStatus] = {}
        peer.subscribe(market_data.subscription_topic(source))
        peer.subscribe(market_data.dictionary_topic(source))

    def update(self, symbol: str, *, skip: int = 0) -> None:
        number = self.numbers[symbol] = self.numbers.get(symbol, 0) + 1 + skip
        assert self.peer.publish(f"{self.source}.{symbol}", self._message(symbol, MsgType.UPDATE, number))

    def _message(self, symbol: str, kind: MsgType, number: int, status: MsgStatus = MsgStatus.OK) -> bytes:
        fields = [Field("wBidPrice", 237, FieldType.F64, float(number))]
        return encode(stamped(Stamp(kind, status, number, self.sender, symbol), fields))

    def answer(self, frames: Sequence[ReceivedFrame]) -> None:
        for received in frames:
            frame = received.frame
            request = read_request(decode(frame.payload))
            assert isinstance(request, MarketDataRequest)
            self.requests.append((request, frame.type))
            if frame.type is not FrameType.REQUEST:
                continue
            if request.message == SubscriptionMsgType.DDICT_SNAPSHOT:
                self.peer.reply(frame, encode(dictionary_message(DICTIONARY)))
                continue
            kind = MsgType.RECAP if request.message in RECAPS else MsgType.INITIAL
            number, status = self.numbers.get(request.symbol, 0), self.refuses.get(request.symbol, MsgStatus.OK)
            self.peer.reply(frame, self._message(request.symbol, kind, number, status))


def basic(number: int, sender: int = 5, **more: int) -> bytes:
    """A numbered message of a publisher without images."""
    fields = [Field(name, 22 if name == "wConflateCount" else 0, FieldType.I32, value) for name, value in more.items()]
    return encode(MamaMsg(stamped(Stamp(number=number, sender=sender), fields).fields))
