"""What an older server does not know is not asked of it, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.jetstream.streams import create
from mama_spark.nats.read.stream_log import _show_progress
from mama_spark.nats.subjects import PROGRESS_METADATA

from tests.support.tables import each


def connected(version: tuple[int, int]) -> Any:
    return SimpleNamespace(info=SimpleNamespace(version_numbers=version, max_payload=1000), server=f"{version}")


@each("version, batched", [((2, 10), None), ((2, 12), None), ((2, 14), True), ((3, 0), True)])
def test_streams_are_made_with_fast_ingest_where_the_server_has_it(version: tuple[int, int], batched: object) -> None:
    asked: list[Any] = []

    def answer(calls: list[Any]) -> list[Any]:
        asked.extend(body for _, body in calls)
        return [{"config": body} for _, body in calls]

    api: Any = SimpleNamespace(connection=lambda: connected(version), request_all=answer)
    create(api, "S", ["s.>"], NatsSettings())
    assert [(body.get("allow_batched"), body["duplicate_window"]) for body in asked] == [(batched, 60 * 10**9)]


@each("version, refused", [((2, 10), [1]), ((2, 11), []), ((3, 0), [])])
def test_a_message_that_shall_expire_is_refused_where_it_would_not(
    version: tuple[int, int], refused: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = NatsBridge(NatsSettings())
    bridge._connection = connected(version)
    monkeypatch.setattr(bridge._router, "rejections", lambda *_: {})
    rows: list[dict[str, list[str]] | None] = [None, {"Nats-TTL": ["5s"]}]
    rejected = bridge.prepare(MessageBatch.of(["t"] * 2, [b""] * 2, rows)).rejected
    assert [row for row, _ in rejected] == refused
    assert all("2.11" in str(error) for _, error in rejected)


@each("version, asked", [((2, 12), ["DELETE", "CREATE"]), ((2, 14), ["RESET"])])
def test_a_consumer_that_shows_progress_is_made_anew_where_the_server_resets_none(
    version: tuple[int, int], asked: list[str]
) -> None:
    """A server before 2.14 does not answer a reset: each micro-batch would wait for it."""
    there = {"name": "telemetry", "config": {"metadata": PROGRESS_METADATA}}
    calls: list[str] = []

    def request(subject: str, *_: object, **__: object) -> None:
        calls.append(subject.split(".")[1])

    api: Any = SimpleNamespace(
        connection=lambda: connected(version), find=lambda *_: there, request=request, timeout=5.0
    )
    _show_progress(api, "S", "telemetry", 7, [])
    assert calls == asked
