"""Consumers of a reader: deleted, lost, given up, standing still; none is left behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ClientClosed, Unavailable
from mama_spark.nats.jetstream.answers import ConsumerInfo, StreamInfo
from mama_spark.nats.jetstream.consumers import create_consumer
from mama_spark.nats.protocol.direct_get import StoredMessage
from mama_spark.nats.protocol.records import DeliveryBuffer, DeliveryParser
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.log_suite import LoggedRecord, everything, rows
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.nats.nats_log import MANY, SIZE, consumers, fill, held_to, reading
from tests.support.nats.nats_servers import Admin


def test_a_consumer_that_an_operator_deletes_costs_nothing(shared: NatsServer, admin: Admin, full: str) -> None:
    with reading(shared.url) as logs:
        found: list[LoggedRecord] = []
        for batch in logs.log(full).read(0, MANY):
            found += rows(batch)
            for consumer in consumers(admin, full):
                assert consumer.startswith("mama-"), "so that discovery knows it"
                admin.api(f"CONSUMER.DELETE.{full}.{consumer}")
        held_to(found)


def test_deliveries_that_are_lost_are_fetched_again(
    shared: NatsServer, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_buffer, turns = DeliveryParser.take_buffer, count()

    def lossy(parser: DeliveryParser) -> DeliveryBuffer:
        buffer = take_buffer(parser)
        turn = next(turns)
        if len(buffer) > 10 and turn < 4:
            for column in (buffer.subjects, buffer.tails, buffer.payloads):
                if turn % 2:
                    del column[4:6]  # in the middle
                else:
                    del column[:3]
        return buffer

    monkeypatch.setattr(DeliveryParser, "take_buffer", lossy)
    with reading(shared.url) as logs:
        held_to(everything(logs.log(full).read(0, 9000)), 9000)
    assert next(turns) > 4


def test_a_range_ends_where_the_server_counts_records_that_it_never_sends(
    shared: NatsServer, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older servers do for a filter with a star that is a part of a token."""
    made = count(1)

    def hopeful(*given: Any) -> ConsumerInfo:
        next(made)
        return replace(create_consumer(*given), pending=3)

    monkeypatch.setattr("mama_spark.nats.read.range_reader.create_consumer", hopeful)
    with reading(shared.url) as logs:
        assert everything(logs.log(full).read(0, MANY, [f"{full}.1*"])) == []
    assert next(made) == 3, "it asks once more"


def test_what_is_given_up_leaves_no_consumer_behind(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        next(batches)
        assert len(consumers(admin, name)) == 1
        del batches
        held_to(everything(log.read(0, MANY)))
        log.sequence_at(0)
        eventually(lambda: not consumers(admin, name), "all consumers are deleted")
        kept = log.read(0, MANY)
        next(kept)
        config = admin.api(f"CONSUMER.INFO.{name}.{consumers(admin, name)[0]}")["config"]
        assert 0 < config["inactive_threshold"] <= 60e9, "a reader that died is cleaned up by the server"
        assert config["mem_storage"]


def test_a_reader_that_stands_still_has_a_few_megabytes_fetched(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 2 * MANY)
    with reading(shared.url) as logs:
        batches = logs.log(name).read(0, 2 * MANY)
        found = list(rows(next(batches)))

        def at_rest() -> dict[str, Any] | None:
            info = admin.api(f"CONSUMER.INFO.{name}.{consumers(admin, name)[0]}")
            return info if not info["num_waiting"] else None

        info = eventually(at_rest, "no request is open any more")
        assert (info["delivered"]["consumer_seq"] - len(found)) * SIZE < 8 * 2**20
        held_to(found + everything(batches), 2 * MANY)


def test_requests_are_no_larger_than_the_server_allows(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "n", jetstream="limits { max_request_batch: 100 }") as server,
        Admin(server.url) as admin,
    ):
        admin.create_stream("S", ["S.>"])
        fill(server.url, "S", 1_500, topics=700)
        with reading(server.url, timeout=5.0) as logs:
            held_to(everything(logs.log("S").read(0, 1_500)), 1_500)
            assert [r.sequence for r in everything(logs.log("S").current())] == list(range(801, 1_501))
            follower, found = logs.served("S").tail(0, [], "the reader"), list[LoggedRecord]()

            def all_came() -> bool:
                if (records := follower.poll()) is not None:
                    found.extend(rows(records))
                return len(found) >= 1_500

            eventually(all_came, "all are followed")
            held_to(found, 1_500)


def test_closing_the_bridge_ends_what_is_read(shared: NatsServer, full: str) -> None:
    with reading(shared.url) as logs:
        batches = logs.log(full).read(0, MANY)
        next(batches)
    with pytest.raises((ClientClosed, Unavailable)):
        list(batches)
    with pytest.raises(ClientClosed):
        logs.names([])


class _BehindApi:
    """Answers as the server does, but the first consumers are at a replica that has no records yet."""

    def __init__(self, api: Any, behind: int) -> None:
        self._api, self.behind = api, behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def request(self, call: str, *args: Any, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._api.request(call, *args, **more)
        if call.startswith("CONSUMER.CREATE.") and self.behind:
            self.behind -= 1
            answer["num_pending"] = 0
        return answer


class _EmptyApi(_BehindApi):
    """Answers as the server does, but new consumers count records, have none later, and send none."""

    def request(self, call: str, *args: Any, **more: Any) -> dict[str, Any]:
        if call.startswith("CONSUMER.CREATE.") and self.behind:
            self.behind -= 1
            body = {**args[0], "config": {**args[0]["config"], "filter_subjects": ["nobody"]}}
            return {**self._api.request(call, body, *args[1:], **more), "num_pending": 3}
        answer: dict[str, Any] = self._api.request(call, *args, **more)
        return answer


@pytest.mark.parametrize(
    ("api", "times", "replicas", "text"),
    [
        (_EmptyApi, 2, 1, ""),
        (_EmptyApi, 1_000_000, 1, "delivers the stored records after sequence 0$"),
        (_BehindApi, 1_000_000, 3, "no replica of stream .* delivers the stored records after sequence 0"),
    ],
)
def test_stored_records_that_consumers_deny_end_no_range(
    shared: NatsServer, full: str, api: type[_BehindApi], times: int, replicas: int, text: str
) -> None:
    """As those of a server do whose count is wrong, or whose sequences are beyond what it can."""
    with reading(shared.url, timeout=1.5 if text else TIMEOUT) as logs:
        logs.api = api(logs.api, times)  # type: ignore[assignment]
        log = logs.log(full)
        log.info.config["num_replicas"] = replicas
        if text:
            with pytest.raises(Unavailable, match=text):
                everything(log.read(0, 10))
        else:
            assert len(everything(log.read(0, 10))) == 10


@pytest.mark.parametrize("topic", [(), ("0",), ("0", "1")], ids=len)
def test_a_replica_that_is_behind_the_leader_ends_no_range(
    shared: NatsServer, full: str, topic: tuple[str, ...]
) -> None:
    with reading(shared.url) as logs:
        logs.api = api = _BehindApi(logs.api, 2)  # type: ignore[assignment]
        log = logs.log(full)
        log.info.config["num_replicas"] = 3
        found = everything(log.read(0, 3000, [f"{full}.{last}" for last in topic]))
        assert not api.behind
        assert [r.sequence for r in found] == list(range(1, 3001, 2 if len(topic) == 1 else 1))
        assert not everything(log.read(MANY - 1, MANY, [f"{full}.0"])), "nothing follows"


class _BehindLeader:
    """Answers as the server does, but at first with nothing that is stored, as a new leader that has not applied it."""

    def __init__(self, api: Any) -> None:
        self._api, self.behind = api, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def stream(self, name: str, **details: bool) -> StreamInfo:
        found: StreamInfo = self._api.stream(name, **details)
        found.config["num_replicas"] = 3
        self.behind -= self.behind > 0
        return replace(found, last=0) if self.behind else found

    def message(self, *which: Any, **more: Any) -> StoredMessage | None:
        found: StoredMessage | None = None if self.behind else self._api.message(*which, **more)
        return found

    def request(self, call: str, *args: Any, **more: Any) -> dict[str, Any]:
        nothing = {"num_pending": 0} if call.startswith("CONSUMER.CREATE.") and self.behind else {}
        return {**self._api.request(call, *args, **more), **nothing}


def test_a_leader_that_is_behind_is_waited_for(shared: NatsServer, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log does not end, and does not go back, unless it stays so: then the stream was restored."""
    monkeypatch.setattr("mama_spark.nats.read.log_connection._CATCH_UP", TIMEOUT)
    with reading(shared.url) as logs:
        logs.api = api = _BehindLeader(logs.api)  # type: ignore[assignment]
        log = logs.log(full)
        api.behind = 3
        assert len(everything(log.read(0, MANY))) == MANY
        api.behind = 3
        assert log.bounds().last == MANY
        api.behind = 1_000_000
        monkeypatch.setattr("mama_spark.nats.read.log_connection._CATCH_UP", 0.5)
        assert log.bounds().last == 0
