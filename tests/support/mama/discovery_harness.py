"""Strangers that announce themselves with nothing but a NATS client, and rows of discovery in short."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import SourceRecord, encode_source
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import LIVE, REC, WARN, DiscoveryLayout
from mama_spark.nats.settings import NatsSettings

from tests.support.nats.nats_servers import Admin

BOARD = DiscoveryLayout()


def create_streams(url: str) -> None:
    """What `mama sources --create-streams` does."""
    bridge = NatsDiscovery(NatsSettings((url,)))
    bridge.open()
    try:
        bridge.create_streams()
    finally:
        bridge.close()


def desk(number: int, name: str = "desk", **said: Any) -> SourceRecord:
    """A source that is fine."""
    return SourceRecord(name, number, **{"state": "ONLINE", "data_state": "OK", **said})


def key(record: SourceRecord) -> SourceKey:
    return SourceKey(record.name, record.id)


class ForeignAnnouncer(Admin):
    """Knows subjects, headers and streams, and nothing of this package."""

    def store(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Stored; its sequence."""
        return self.publish_all([(subject, payload, headers)])[-1]

    def publish_all(self, messages: Iterable[tuple[str, bytes, dict[str, str] | None]]) -> list[int]:
        """Stored, in order; their sequences."""
        jetstream = self._client.jetstream(publish_async_max_pending=4000)

        async def publish() -> list[int]:
            waiting = [await jetstream.publish_async(s, p, headers=h, wait_stall=30) for s, p, h in messages]
            return [(await future).seq for future in waiting]

        return self._run(publish())

    def say(self, record: SourceRecord | bytes, source: SourceKey | None = None) -> int:
        """A source record; bytes are anybody's."""
        if isinstance(record, bytes):
            assert source is not None
            return self.store(BOARD.source_subject(source, REC), record)
        return self.store(BOARD.source_subject(source or key(record), REC), encode(encode_source(record)))

    def live(self, source: SourceKey, seconds: int) -> None:
        """Be SUSPECT after half of ``seconds`` (a second at least) and OFFLINE after all of them."""
        for part, ttl in ((WARN, max(seconds // 2, 1)), (LIVE, seconds)):
            self.store(BOARD.source_subject(source, part), b"", {"Nats-TTL": f"{ttl}s"})

    def expired(self, source: SourceKey) -> bool:
        """Has the server itself said that the source is OFFLINE?"""
        last = {"last_by_subj": BOARD.source_subject(source, LIVE)}
        message = self.api(f"STREAM.MSG.GET.{BOARD.events}", last).get("message", {})
        return b"Nats-Marker-Reason" in b64decode(message.get("hdrs", ""))

    def publish_events(self, source: SourceKey, event: EventRecord | bytes) -> int:
        payload = event if isinstance(event, bytes) else encode(encode_event(event))
        return self.store(BOARD.event_subject(source), payload)

    def consumer(self, stream: str, name: str, topic: str) -> None:
        """A durable pull consumer, as anybody's program makes one."""
        config = {"durable_name": name, "filter_subject": topic, "ack_policy": "explicit"}
        answer = self.api(f"CONSUMER.CREATE.{stream}.{name}.{topic}", {"stream_name": stream, "config": config})
        assert "error" not in answer, answer["error"]

    def delete(self, *streams: str) -> None:
        """All at once: nobody sees one gone and the next there, however busy this process is."""

        async def ask() -> None:
            subjects = (f"$JS.API.STREAM.DELETE.{stream}" for stream in streams)
            await asyncio.gather(*(self._client.request(subject, b"", timeout=30) for subject in subjects))

        self._run(ask())


def line(row: dict[str, Any]) -> str:
    if row["kind"] == "source":
        return f"{row['event']} {row['source_name']} {row['source_id']}"
    if row["kind"] in ("topic", "publisher"):
        return f"{row['event']} {row['topic']}"
    return str(row["event"])
