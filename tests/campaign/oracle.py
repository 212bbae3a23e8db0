"""What became of the rows of a round, found out with nothing of the product: the stream read by plain nats-py (or from
the broker's SQLite file), the flight log by deltalake, and packs taken apart by pyarrow."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pyarrow as pa
from deltalake import DeltaTable
from nats.js.api import AckPolicy, ConsumerConfig

from tests.campaign.rows import partition_of

Row = tuple[str, bytes]  #: topic, payload
_TERMINAL = ("acked", "completed_exceptionally", "timeout")
_ATTEMPTS = 30
#: Seconds for which a server keeps the consumer of a reader that says nothing: longer than any machine is busy.
READER_TTL = 600.0


class StoredMessage(NamedTuple):
    topic: str
    payload: bytes
    pack: str | None  #: header Mama-Pack


@dataclass
class Findings:
    """Counts of rows.

    :ivar lost: reported as acked in a committed batch, and not stored
    :ivar doubled: stored more than once (each copy after the first)
    :ivar unaccounted: without exactly one terminal event in a committed batch
    :ivar contradicted: reported as surely not stored, and stored
    :ivar foreign: stored or reported, and never sent
    :ivar disordered: stored behind a later row of their partition
    :ivar failed: reported as failed or unknown
    """

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    unaccounted: int = 0
    contradicted: int = 0
    foreign: int = 0
    disordered: int = 0
    failed: int = 0

    def faults(self, *, may_double: bool, may_fail: bool, ordered: bool) -> dict[str, int]:
        """Those that contradict what is promised."""
        allowed = {"rows", *["doubled"] * may_double, *["failed"] * may_fail, *["disordered"] * (not ordered)}
        return {name: count for name, count in asdict(self).items() if count and name not in allowed}


def rows_of(topic: str, payload: bytes, pack: str | None) -> list[Row]:
    """The rows of a message."""
    if pack is None:
        return [(topic, payload)]
    if pack.startswith("lines"):
        return [(topic, value) for value in payload.split(b"\n")]
    with pa.ipc.open_stream(payload) as reader:
        return [(topic, value) for value in reader.read_all()["value"].to_pylist()]


def read_nats(urls: list[str], stream: str) -> list[StoredMessage]:
    """All messages, in order; asked for again while the servers are not well yet."""
    return asyncio.run(_read_nats(urls, stream))


async def _read_nats(urls: list[str], stream: str) -> list[StoredMessage]:
    client = await nats.connect(urls, error_cb=_ignore)
    try:
        for attempt in range(_ATTEMPTS):
            try:
                return await _consume(client.jetstream(timeout=10), stream)
            except (nats.errors.Error, TimeoutError):
                if attempt + 1 == _ATTEMPTS:
                    raise
                await asyncio.sleep(1)
    finally:
        await client.close()
    raise AssertionError("unreachable")


async def _consume(jetstream: Any, stream: str) -> list[StoredMessage]:
    left = int((await jetstream.stream_info(stream)).state.messages)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, num_replicas=1, inactive_threshold=READER_TTL)
    reader = await jetstream.pull_subscribe("", stream=stream, config=config)
    found: list[StoredMessage] = []
    while len(found) < left:
        for message in await reader.fetch(min(1_000, left - len(found)), timeout=10):
            found.append(StoredMessage(message.subject, message.data, (message.headers or {}).get("Mama-Pack")))
    await reader.unsubscribe()
    return found


async def _ignore(_: Exception) -> None:
    """Outages are what the campaign makes."""


def read_sqlite(file: Path) -> list[StoredMessage]:
    """All messages of a durable stream of a Malamute broker, in order."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
        rows = store.execute("SELECT subject, content, headers FROM messages ORDER BY sequence").fetchall()
    return [StoredMessage(subject.decode(), content, _pack_header(headers)) for subject, content, headers in rows]


def _pack_header(headers: bytes | None) -> str | None:
    for form in ("lines", "arrow"):
        if headers is not None and b"Mama-Pack" in headers and f"{form};v=1".encode() in headers:
            return form
    return None


def flights(log: Path) -> list[dict[str, Any]]:
    """Terminal events of the flight log, of all attempts."""
    columns = ["event", "topic", "payload", "headers", "may_have_landed", "committed"]
    table = DeltaTable(str(log)).to_pyarrow_table(columns=columns)
    return [row for row in table.to_pylist() if row["event"] in _TERMINAL]


def judge(sent: Counter[Row], messages: Iterable[StoredMessage], events: Iterable[dict[str, Any]]) -> Findings:
    """Hold what was sent, what is stored and what is reported against each other."""
    stored = [row for message in messages for row in rows_of(*message)]
    held = Counter(stored)
    committed: dict[Row, list[tuple[str, bool]]] = defaultdict(list)
    acked_elsewhere: set[Row] = set()
    for event in events:
        pack = dict(event["headers"] or ()).get("Mama-Pack", [None])[0]
        for row in rows_of(event["topic"], event["payload"], pack):
            if event["committed"]:
                committed[row].append((event["event"], bool(event["may_have_landed"])))
            elif event["event"] == "acked":
                acked_elsewhere.add(row)
    acked = Counter(row for row, outcomes in committed.items() for name, _ in outcomes if name == "acked")
    unsure = {row for row, outcomes in committed.items() if any(landed for _, landed in outcomes)}
    return Findings(
        rows=sent.total(),
        lost=sum(
            max(0, min(n, max(1, sent[row])) - held[row]) for row, n in (acked | Counter(acked_elsewhere)).items()
        ),
        doubled=sum(max(0, count - max(1, sent[row])) for row, count in held.items()),
        unaccounted=sum(abs(len(committed.get(row, ())) - count) for row, count in sent.items()),
        contradicted=sum(row in held for row in set(committed) - set(acked) - unsure),
        foreign=len(set(held) - set(sent)) + len((set(committed) | acked_elsewhere) - set(sent)),
        disordered=_disordered(stored),
        failed=sum(row not in acked for row in committed),
    )


def _disordered(stored: list[Row]) -> int:
    latest: dict[bytes, bytes] = {}
    behind = 0
    for _, value in stored:
        partition = partition_of(value)
        behind += value < latest.get(partition, b"")
        latest[partition] = max(value, latest.get(partition, b""))
    return behind
