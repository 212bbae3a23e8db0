"""A recorder whose log rejects records, or is gone for a while: each message is stored, or a gap record says that it is
not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.wire.market_data import Stamp, stamped

from tests.support.nats.nats_servers import Admin
from tests.support.openmama.network import Watched, peer
from tests.support.openmama.recorder import NatsRecordedLog, basic, recording
from tests.support.ports import lasting_port

SUBJECTS = ["mama.>"]


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as one:
        yield one


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[NatsRecordedLog]:
    with closing(NatsRecordedLog(nats_server, "MAMA")) as one:
        yield one


@pytest.mark.parametrize("pack", [1, 50])
@pytest.mark.spec("OW29")
def test_each_message_is_stored_or_in_a_gap_whatever_the_log_rejects(
    admin: Admin, log: NatsRecordedLog, pack: int, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_stream("MAMA", SUBJECTS, max_bytes=20_000, discard="new", allow_batched=True)
    url = f"oz://127.0.0.1:{lasting_port()}?mode=direct"
    number = 0
    with peer(f"{url}&bind=true") as publisher, recording(log, url, topics="OM.A", packMaxRows=pack) as recorder:
        watched = Watched(publisher)

        def publish(n: int) -> None:
            nonlocal number
            for _ in range(n):
                number += 1
                assert publisher.publish("OM.A", basic(number))

        def some_are_refused() -> bool:
            publish(20)
            return recorder.counts.refused > 100

        def stored(last: int) -> bool:
            rows = log.rows("message", "gap")
            return any(last in (row["seq_num"], row["gap_to"]) for row in rows)

        watched.until(lambda: publisher.wanted("OM.A"), "the recorder subscribes")
        with caplog.at_level(logging.ERROR):
            watched.until(some_are_refused, "the full log rejects records, and gap records")
        assert "the recorder goes on" in caplog.text
        admin.update_stream("MAMA", max_bytes=20_000_000)
        watched.until(lambda: log.rows("gap") and recorder.counts.waiting == 0, "what was rejected is told")
        publish(10)
        number += 1
        large = Field("wText", 0, FieldType.OPAQUE, bytes(1_100_000))
        assert publisher.publish("OM.A", encode(MamaMsg(stamped(Stamp(number=number, sender=5), [large]).fields)))
        too_large = number
        publish(10)
        watched.until(lambda: stored(number) and stored(too_large), "what is too large is told, and others are stored")
    rows = log.rows("message", "gap")
    told = [n for row in rows for n in ([row["seq_num"]] if row["kind"] == "message" else
                                        range(row["gap_from"], row["gap_to"] + 1))]  # fmt: skip
    assert sorted(told) == list(range(1, number + 1)), "each once"
    assert {row["cause"] for row in rows if row["kind"] == "gap"} == {"refused"}
    assert log.numbers("OM.A") == sorted(log.numbers("OM.A"))
    assert too_large not in log.numbers("OM.A")
    assert recorder.counts.waiting == 0


@pytest.mark.spec("OW29")
def test_packs_wait_for_a_stream_that_was_removed(admin: Admin, log: NatsRecordedLog) -> None:
    admin.create_stream("MAMA", SUBJECTS, allow_batched=True)
    url = f"oz://127.0.0.1:{lasting_port()}?mode=direct"
    with peer(f"{url}&bind=true") as publisher, recording(log, url, topics="OM.A", packMaxRows=50) as recorder:
        watched = Watched(publisher)
        watched.until(lambda: publisher.wanted("OM.A"), "the recorder subscribes")
        assert publisher.publish("OM.A", basic(1))
        watched.until(lambda: log.numbers("OM.A") == [1], "it records")
        admin.api("STREAM.DELETE.MAMA")
        for number in range(2, 202):
            assert publisher.publish("OM.A", basic(number))
        watched.until(lambda: recorder.counts.recorded > 200 and recorder.counts.waiting >= 200, "they wait")
        admin.create_stream("MAMA", SUBJECTS, allow_batched=True)
        watched.until(lambda: log.numbers("OM.A") == list(range(2, 202)), "all are in the new stream")
    assert recorder.counts.refused == 0
    assert not log.rows("gap")
