"""Memory and speed of reading back the ids of ten million rows (option ``exactlyOnce``)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.exactly_once.matching import IdReader, StoredRows
from mama_spark.publishing.ids.ids import texts
from mama_spark.testing.waiting import eventually

from tests.support.memory import peak_memory
from tests.support.nats.nats_servers import Admin

ROWS, FEWER = 10_000_000, 2_000_000
CHUNK = 5_000  #: less than a server buffers, which drops the rest
HEAD = "query-1-"
PREFIX = f"{HEAD}0-"
EACH = 24  #: bytes a row, with what the allocator keeps
FLAT = 64 * 1024 * 1024


def frames() -> Iterator[bytes]:
    """Messages with default ids and no payload, as the client writes them."""
    chance = np.random.default_rng(1)
    zeros = np.zeros(CHUNK, np.int64)
    for _ in range(ROWS // CHUNK):
        ids = texts(HEAD, zeros, chance.integers(0, 256, (CHUNK, 16), np.uint8), zeros).to_pylist()
        size = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") + len(ids[0])
        sizes, head = f"{size} {size}\r\n", "NATS/1.0\r\nNats-Msg-Id: "
        lines = [f"HPUB once.a {sizes}{head}"] * (CHUNK - 1) + [f"HPUB once.a stored {sizes}{head}"]
        yield "".join(line + one + "\r\n\r\n\r\n" for line, one in zip(lines, ids, strict=True)).encode()


def publish_all(server: NatsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB stored 1\r\n')
        for some in frames():
            connection.sendall(some)
            found = b""
            while b'"seq"' not in found:  # of the last one, and so of all before it
                if found.endswith(b"PING\r\n"):
                    connection.sendall(b"PONG\r\n")
                more = connection.recv(65_536)
                assert more, "the server has closed the connection"
                found += more


def read_back(url: str, up_to: int, answer: Connection) -> None:
    """Rows found, growth of the largest memory in bytes, and seconds of processor time."""
    ledger, table, reader = NatsBatchLedger(NatsSettings(servers=(url,)), 60.0), StoredRows(0, len(HEAD)), IdReader()
    ledger.open()
    before, began = peak_memory(), process_time()
    for some in ledger.read("ONCE", 0, up_to, PREFIX.encode()):
        reader.add(table, some)
    table.finish()
    spent, after = process_time() - began, peak_memory()
    ledger.close()
    answer.send((len(table), after - before, spent))


@pytest.mark.explore
@pytest.mark.timeout(3_600)
def test_ten_million_rows_cost_24_bytes_each_at_most_and_little_more(tmp_path: Path) -> None:
    found = {}
    with NatsServer(tmp_path / "nats") as server, Admin(server.url) as admin:
        admin.create_stream("ONCE", ["once.>"], duplicate_window=100_000_000)
        publish_all(server)
        eventually(lambda: admin.info("ONCE")["state"]["last_seq"] == ROWS, "all is stored", 600)
        for up_to in (FEWER, ROWS):
            here, there = get_context("spawn").Pipe()
            process = get_context("spawn").Process(target=read_back, args=(server.url, up_to, there))
            process.start()
            found[up_to] = here.recv()
            process.join()
    for up_to, (rows, grown, spent) in found.items():
        print(
            f"{up_to:,} rows: {grown / 2**20:,.0f} MiB, {grown / rows:.1f} bytes a row; {spent:.1f} s of processor time"
        )
        assert rows == up_to
    each = (found[ROWS][1] - found[FEWER][1]) / (ROWS - FEWER)
    print(f"{each:.1f} bytes for each row more")
    assert each <= EACH
    assert found[FEWER][1] < 40 * FEWER + FLAT
