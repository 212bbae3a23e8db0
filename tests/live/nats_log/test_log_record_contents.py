"""Records that are large, have a topic each, or headers and subjects that are no text."""

from __future__ import annotations

from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.log_suite import everything
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_log import fill, reading
from tests.support.nats.nats_servers import Admin
from tests.support.nats.plain_nats_connection import PlainNatsConnection


def test_records_larger_than_a_request_come(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 5, 100)
    fill(shared.url, name, 2, 8 * 2**20)
    fill(shared.url, name, 5, 100)
    fill(shared.url, name, 1, 8 * 2**20)
    with reading(shared.url) as logs:
        found = everything(logs.log(name).read(0, 13))
    assert [len(r.payload) for r in found] == [100] * 5 + [8 * 2**20] * 2 + [100] * 5 + [8 * 2**20]
    assert found[6].payload == (b"1" + b"." * 8 * 2**20)[: 8 * 2**20]


def test_headers_and_subjects_that_are_no_text_do_not_stop_a_reader(
    shared: NatsServer, admin: Admin, name: str
) -> None:
    blocks = [
        b"NATS/1.0\r\nA: \xff\xfe\r\nA: 2\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\nB:  x \r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ]
    longest = b"l" * 4_000  # which its delivery is longer than, by the subject of its reply
    subjects = [b"o", b"o.\xc3\xa9", b"o", b"$", longest, b"\xff\xfe"]
    with PlainNatsConnection(shared.url) as raw:
        for i, subject in enumerate(subjects):
            block = blocks[i % len(blocks)]
            where = name.encode() + b"." + subject
            raw.send(b"HPUB %b %d %d\r\n%bxyz\r\n" % (where, len(block), len(block) + 3, block))
        eventually(lambda: admin.info(name)["state"]["last_seq"] == len(subjects), "all are stored")
    admin.update_stream(name, allow_direct=True)
    with reading(shared.url) as logs:
        found = everything(logs.log(name).read(0, len(subjects)))
        direct, left = logs.api.get_many(name, seq=1, next_by_subj=">", batch=100)
        one = logs.api.get(name, seq=3)
    assert [(message.sequence, message.payload) for message in direct] == [(n, b"xyz") for n in range(1, 7)]
    assert (left, one) == (0, direct[2])
    assert [message.headers for message in direct[1:3]] == [{"B": "x "}, {}]
    assert [r.payload for r in found] == [b"xyz"] * len(subjects)
    assert [r.headers for r in found[:4]] == [{"A": [r"\xff\xfe", "2"]}, {"B": [" x "]}, None, None]
    topics = ["o", "o.é", "o", "$", longest.decode(), r"\xff\xfe"]
    assert [r.topic for r in found] == [f"{name}.{topic}" for topic in topics]
