"""Requests to JetStream: what is repeated, how long, and what an error of the server becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from mama_spark.contracts.errors import ConfigError, NoResponders, OutOfResources, Rejected, Unavailable
from mama_spark.nats.jetstream import retry, streams
from mama_spark.nats.jetstream.answers import NO_RESPONDERS, NO_STREAM, ApiError, ApiForbidden
from mama_spark.nats.jetstream.api import JetStreamClient
from mama_spark.nats.jetstream.client import JetStream
from mama_spark.nats.settings import NatsSettings
from nats.errors import NoRespondersError

Answer = object  # bytes, None (forbidden), or an exception


class FakeConnection:
    """Answers requests with what it was given, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, bytes, float]] = []
        self.closed, self.api_prefix = False, "$JS.API."
        self.loop = SimpleNamespace(alive=True)

    async def request(self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None) -> Any:
        self.asked.append((subject, payload, timeout))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if answer is None else SimpleNamespace(data=answer, headers=None)


def error(code: int, err_code: int, text: str = "no") -> bytes:
    return orjson.dumps({"error": {"code": code, "err_code": err_code, "description": text}})


def client(*answers: Answer, timeout: float = 0.5) -> tuple[JetStreamClient, FakeConnection]:
    connection: Any = FakeConnection(*answers)
    return JetStreamClient(connection, timeout, 3.0), connection


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays, which pass at once."""
    clock, waited = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds

    loop = SimpleNamespace(time=lambda: clock[0])
    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop))
    return waited


def run(work: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await work

    return asyncio.run(awaited())


@pytest.mark.parametrize(
    "passing", [Unavailable("silence"), NoRespondersError(), error(503, 10008), error(500, 1), b"?"]
)
def test_what_may_pass_is_repeated(waits: list[float], passing: Answer) -> None:
    jetstream, connection = client(passing, passing, passing, b'{"ok":1}', timeout=9.0)
    assert run(jetstream.request("INFO", {"a": 1})) == {"ok": 1}
    assert waits == [0.05, 0.1, 0.2]
    assert [(subject, payload) for subject, payload, _ in connection.asked] == [("$JS.API.INFO", b'{"a":1}')] * 4


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (Unavailable("silence"), "silence"),
        (NoRespondersError(), "nobody listens; is JetStream enabled for this account?"),
        (error(503, 10008, "no leader"), "no leader"),
    ],
)
def test_it_ends_with_the_last_error_when_the_time_is_over(waits: list[float], last: Answer, why: str) -> None:
    jetstream, connection = client(last)
    with pytest.raises(Unavailable, match=r"no answer to \$JS\.API\.INFO within 0\.5 s: ") as e:
        run(jetstream.request("INFO"))
    assert why in str(e.value)
    assert waits == [0.05, 0.1, 0.2], "the next one would be too late"
    assert [limit for *_, limit in connection.asked] == pytest.approx([0.5, 0.45, 0.35, 0.15])


def test_one_attempt_is_made_whatever_the_time_limit(waits: list[float]) -> None:
    jetstream, connection = client(b"{}")
    assert run(jetstream.request("INFO", timeout=0.0)) == {}
    assert len(connection.asked) == 1


def test_a_closed_connection_is_not_asked_again(waits: list[float]) -> None:
    jetstream, connection = client(Unavailable("silence"), timeout=60.0)
    connection.closed = True
    with pytest.raises(Unavailable):
        run(jetstream.request("INFO"))
    assert len(connection.asked) == 1


def test_an_error_that_does_not_pass_is_raised_at_once(waits: list[float]) -> None:
    jetstream, _ = client(error(404, NO_STREAM, "stream not found"))
    with pytest.raises(ApiError, match=r"stream not found \(\$JS\.API\.STREAM\.INFO\.S\)") as e:
        run(jetstream.request("STREAM.INFO.S"))
    assert (e.value.code, e.value.description) == (NO_STREAM, "stream not found")
    with pytest.raises(ApiForbidden, match=r"no permission to publish to \$JS\.API\.INFO"):
        run(client(None)[0].request("INFO"))
    assert waits == []


@pytest.mark.parametrize(("answer", "code"), [(NoRespondersError(), NO_RESPONDERS), (error(503, 10076), 10076)])
def test_a_caller_may_take_an_error_as_final(waits: list[float], answer: Answer, code: int) -> None:
    with pytest.raises(ApiError) as e:
        run(client(answer)[0].request("INFO", final=(NO_RESPONDERS, 10076)))
    assert e.value.code == code
    assert waits == []


def test_a_message_is_published_until_it_is_acknowledged(waits: list[float]) -> None:
    jetstream, _ = client(error(503, 10008), Unavailable("silence"), b'{"stream":"S","seq":7}')
    assert run(jetstream.publish("s.a", b"x", {})) == 7
    assert waits == [0.05, 0.1]
    with pytest.raises(Rejected):
        run(client(error(400, 10109))[0].publish("s.a", b"x", {}))
    with pytest.raises(ApiForbidden, match=r"no permission to publish to 's\.a'"):
        run(client(None)[0].publish("s.a", b"x", {}))


def test_which_errors_are_repeated() -> None:
    assert retry.is_retryable_request(Unavailable("x"))
    assert retry.is_retryable_request(retry.ServerNotReady("x", 10008))
    assert retry.is_retryable_request(OutOfResources("x"))
    assert retry.is_retryable_request(NoResponders("x"))
    assert not retry.is_retryable_request(Rejected("x"))
    assert not retry.is_retryable_request(ConfigError("x"))


Call = Callable[[JetStreamClient, streams.StreamCache], Awaitable[Any]]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (NoRespondersError(), "JetStream is not enabled on the server, or not for this account"),
        (error(503, 10039, "not for the account"), "JetStream is off: not for the account"),
        (error(503, 10076, "not enabled"), "JetStream is off: not enabled"),
    ],
)
def test_a_server_without_jetstream_is_a_wrong_setting(waits: list[float], answer: Answer, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run(streams.check_jetstream(client(answer)[0], streams.StreamCache()))
    assert waits == []


def test_the_check_goes_on_where_it_may_not_ask(waits: list[float]) -> None:
    cache = streams.StreamCache()
    run(streams.check_jetstream(client(None)[0], cache))
    assert cache.lookup_denied
    with pytest.raises(Unavailable, match="does not answer properly: strange"):
        run(streams.check_jetstream(client(error(400, 1, "strange"))[0], cache))


def test_a_stream_that_is_not_there_or_hidden_is_none(waits: list[float]) -> None:
    cache = streams.StreamCache()
    assert run(streams.stream_info(client(error(404, NO_STREAM))[0], cache, "S")) is None
    assert cache.info_denied == set()
    assert run(streams.stream_info(client(None)[0], cache, "S")) is None
    assert cache.info_denied == {"S"}
    with pytest.raises(Unavailable, match="stream 'S': strange"):
        run(streams.stream_info(client(error(400, 1, "strange"))[0], cache, "S"))


def test_names_come_in_pages() -> None:
    pages = [orjson.dumps({"streams": names, "total": 3}) for names in (["A", "B"], ["C"])]
    jetstream, connection = client(*pages)
    assert run(streams.stream_names(jetstream, "t")) == ["A", "B", "C"]
    assert [orjson.loads(body) for _, body, _ in connection.asked] == [
        {"offset": 0, "subject": "t"},
        {"offset": 2, "subject": "t"},
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "no permission to create the stream 'S'"),
        (error(400, 10065, "subjects overlap"), "cannot create the stream 'S': subjects overlap"),
        (error(500, 10049, "busy"), "cannot create the stream 'S': busy"),
    ],
)
def test_why_a_stream_cannot_be_made(waits: list[float], answer: Answer, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run(streams.create(client(answer)[0], "S", ["s.>"], NatsSettings()))


def test_a_server_that_does_not_answer_is_no_wrong_setting(waits: list[float]) -> None:
    with pytest.raises(Unavailable):
        run(streams.create(client(Unavailable("silence"))[0], "S", ["s.>"], NatsSettings()))


def test_other_threads_run_requests_on_the_loop() -> None:
    connection: Any = FakeConnection(b'{"ok":1}')
    limits: list[float] = []

    def run_there(work: Any, timeout: float, what: str) -> Any:
        limits.append(timeout)
        return run(work)

    connection.loop.run = run_there
    blocking = JetStream(lambda: connection, 20.0)
    assert blocking.request("INFO") == blocking.request("INFO", timeout=1.0) == {"ok": 1}
    assert min(limits[0] - 20.0, limits[1] - 1.0) > 60.0, "calls end by their own limits"
    assert [limit for *_, limit in connection.asked] == pytest.approx([5.0, 1.0], abs=0.1)
