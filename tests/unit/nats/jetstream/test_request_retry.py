"""Requests to JetStream: what is repeated, how long, and what an error of the server becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from mama_spark.contracts.errors import ConfigError, NoResponders, Rejected, Unavailable
from mama_spark.nats.connection.requests import Denials, ExpectedAnswers
from mama_spark.nats.error_codes import NO_RESPONDERS
from mama_spark.nats.jetstream import request_retry, streams
from mama_spark.nats.jetstream.answers import NO_STREAM, ApiError, ApiForbidden
from mama_spark.nats.jetstream.client import AT_ONCE, JetStream
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.settings import NatsSettings

Answer = object  # bytes, None (forbidden), or an exception


CLOCK = [0.0]


class FakeConnection:
    """Answers requests with what it was given, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.replies: list[Any] = list(answers)
        self.asked: list[tuple[str, bytes, float]] = []
        self.closed, self.up, self.api_prefix = False, True, "$JS.API."
        self.info = SimpleNamespace(version_numbers=(2, 15))
        self.waited: list[float] = []
        self.requests = self

    def drive(self, timeout: float, done: Callable[[], bool]) -> None:
        self.up = True
        if not done():
            self.waited.append(timeout)
            CLOCK[0] += timeout

    def loss(self) -> Callable[[], bool]:
        return lambda: not self.up

    def request_all(self, requests: Sequence[Any], timeout: float, attempts: object) -> list[Any]:
        return [self._answer(subject, payload, timeout) for subject, payload, _ in requests]

    def request(self, subject: str, payload: bytes, timeout: float, headers: object, attempts: object = None) -> Any:
        answer = self._answer(subject, payload, timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append((subject, payload, timeout))
        answer = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return Frame("MSG", 0, payload=answer) if isinstance(answer, bytes) else answer


def error(code: int, err_code: int, text: str = "no") -> bytes:
    return orjson.dumps({"error": {"code": code, "err_code": err_code, "description": text}})


def client(*answers: Answer, timeout: float = 0.5) -> tuple[JetStream, FakeConnection]:
    connection: Any = FakeConnection(*answers)
    return JetStream(lambda: connection, timeout, 3.0), connection


class DirectGets(FakeConnection):
    """Answers direct gets by the frames that it was given for each."""

    denials, answers = Denials(), ExpectedAnswers(b"_INBOX.")

    def ask(self, subject: str, payload: bytes, headers: object, answered: Callable[[Frame], None]) -> int:
        self.asked.append((subject, payload, 0.0))
        for frame in self.replies.pop(0):
            answered(frame)
        return 0

    def loss(self) -> Callable[[], bool]:
        return lambda: False


def direct(sequence: int, status: int = 0) -> Frame:
    headers = [("Nats-Sequence", str(sequence)), ("Nats-Subject", "s"), ("Nats-Time-Stamp", "then"), ("A", "b")]
    return Frame("HMSG", 0, headers=headers, status=status, payload=b"x")


def end(status: int, pending: int = 0) -> Frame:
    return Frame("HMSG", 0, headers=[("Nats-Num-Pending", str(pending))], status=status)


@pytest.mark.parametrize(
    "broken",
    [[], [direct(1)], [direct(1, status=204)], [direct(1), end(408)], [end(503)]],
    ids=["nothing", "no end", "a status of the message", "another end", "nobody"],
)
def test_an_answer_to_a_direct_get_that_breaks_off_is_asked_for_again(broken: list[Frame]) -> None:
    connection: Any = DirectGets(broken, [direct(1), direct(2, status=404), end(204, 7)])
    messages, left = JetStream(lambda: connection, 60.0, 3.0).get_many("S", seq=1)
    assert [(m.sequence, m.subject, m.payload, m.headers) for m in messages] == [
        (n, "s", b"x", {"A": "b"}) for n in (1, 2)
    ]
    assert left == 7
    assert [subject for subject, *_ in connection.asked] == ["$JS.API.DIRECT.GET.S"] * 2


def test_a_direct_get_whose_replica_stands_still_is_asked_of_another_one_soon_and_either_answer_counts() -> None:
    told: list[Callable[[Frame], None]] = []

    class Late(DirectGets):
        def ask(self, subject: str, payload: bytes, headers: object, answered: Callable[[Frame], None]) -> int:
            told.append(answered)
            if len(told) == 3:
                for frame in (direct(1), direct(2), end(204)):
                    told[0](frame)
                told[1](direct(1))
            return len(told)

    connection: Any = Late()
    messages, _ = JetStream(lambda: connection, 60.0, 5.0).get_many("S", seq=1)
    assert [m.sequence for m in messages] == [1, 2]
    assert connection.waited[::2] == [1.5, 1.875], "not the time of one that is asked once"


def test_what_an_attempt_gets_after_a_lost_connection_may_have_holes_and_does_not_count() -> None:
    """Also when it was lost between two attempts."""
    told: list[Callable[[Frame], None]] = []

    class Lost(DirectGets):
        def ask(self, subject: str, payload: bytes, headers: object, answered: Callable[[Frame], None]) -> int:
            told.append(answered)
            if len(told) == 1:
                answered(direct(1))
            else:  # another replica answers at once, while the first one goes on
                for frame in (direct(3), end(204)):
                    told[0](frame)
                for frame in (direct(1), direct(2), direct(3), end(204)):
                    answered(frame)
            return len(told)

        def loss(self) -> Callable[[], bool]:
            before = len(told)
            return lambda: before < 1 <= len(told) and 0.05 in self.waited

    connection: Any = Lost()
    messages, _ = JetStream(lambda: connection, 60.0, 5.0).get_many("S", seq=1)
    assert [m.sequence for m in messages] == [1, 2, 3]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays pass at once."""
    monkeypatch.setattr(request_retry, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))


@pytest.mark.parametrize("passing", [Unavailable("silence"), NoResponders("s"), error(503, 10008), error(500, 1), b"?"])
def test_what_may_pass_is_repeated(passing: Answer) -> None:
    jetstream, connection = client(passing, passing, passing, b'{"ok":1}', timeout=9.0)
    assert jetstream.request("INFO", {"a": 1}) == {"ok": 1}
    assert connection.waited == [0.05, 0.1, 0.2]
    assert [(subject, payload) for subject, payload, _ in connection.asked] == [("$JS.API.INFO", b'{"a":1}')] * 4


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (Unavailable("silence"), "silence"),
        (NoResponders("s"), "nobody listens; is JetStream enabled for this account?"),
        (error(503, 10008, "no leader"), "no leader"),
    ],
)
def test_it_ends_with_the_last_error_when_the_time_is_over(last: Answer, why: str) -> None:
    jetstream, connection = client(last)
    with pytest.raises(Unavailable, match=r"no answer to \$JS\.API\.INFO within 0\.5 s: ") as e:
        jetstream.request("INFO")
    assert why in str(e.value)
    assert connection.waited == [0.05, 0.1, 0.2], "the next one would be too late"
    assert [limit for *_, limit in connection.asked] == pytest.approx([0.5, 0.45, 0.35, 0.15])


class LostOnce(FakeConnection):
    """It is another one after the third request, and answers the fifth."""

    def loss(self) -> Callable[[], bool]:
        before = len(self.asked)
        return lambda: before < 3 <= len(self.asked)

    def _answer(self, subject: str, payload: bytes, timeout: float) -> Any:
        super()._answer(subject, payload, timeout)
        return Frame("MSG", 0, payload=b'{"seq":1}') if len(self.asked) == 5 else Unavailable("nothing")


@pytest.mark.parametrize(
    ("most", "limits"), [(None, [1.5, 1.875, 2.34375, 1.5, 1.875]), (1.6, [1.5, 1.6, 1.6, 1.5, 1.6]), (1.0, [1] * 5)]
)
@pytest.mark.parametrize("call", [lambda api: api.request("INFO"), lambda api: api.publish("a", b"", {})])
def test_attempts_take_longer_each_time_until_the_connection_is_another_one(
    call: Callable[[JetStream], object], most: float | None, limits: list[int]
) -> None:
    """A leader that stands still is soon another one; an answer may also take long."""
    connection: Any = LostOnce(b"")
    call(JetStream(lambda: connection, 60.0, most))
    assert [limit for *_, limit in connection.asked] == limits


def test_one_attempt_is_made_whatever_the_time_limit() -> None:
    jetstream, connection = client(b"{}")
    assert jetstream.request("INFO", timeout=0.0) == {}
    assert len(connection.asked) == 1


def test_a_closed_connection_is_not_asked_again() -> None:
    jetstream, connection = client(Unavailable("silence"), timeout=60.0)
    connection.closed = True
    with pytest.raises(Unavailable):
        jetstream.request("INFO")
    assert len(connection.asked) == 1


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    jetstream, connection = client(error(404, NO_STREAM, "stream not found"))
    with pytest.raises(ApiError, match=r"stream not found \(\$JS\.API\.STREAM\.INFO\.S\)") as e:
        jetstream.request("STREAM.INFO.S")
    assert (e.value.code, e.value.description) == (NO_STREAM, "stream not found")
    with pytest.raises(ApiForbidden, match=r"no permission to publish to \$JS\.API\.INFO"):
        client(None)[0].request("INFO")
    assert connection.waited == []


@pytest.mark.parametrize(("answer", "code"), [(NoResponders("s"), NO_RESPONDERS), (error(503, 10076), 10076)])
def test_a_caller_may_take_an_error_as_final(answer: Answer, code: int) -> None:
    jetstream, connection = client(answer)
    with pytest.raises(ApiError) as e:
        jetstream.request("INFO", final=(NO_RESPONDERS, 10076))
    assert e.value.code == code
    assert connection.waited == []


def test_a_message_is_published_until_it_is_acknowledged() -> None:
    jetstream, connection = client(error(503, 10008), Unavailable("silence"), b'{"stream":"S","seq":7}')
    assert jetstream.publish("s.a", b"x", {}) == 7
    assert connection.waited == [0.05, 0.1]
    with pytest.raises(Rejected):
        client(error(400, 10109))[0].publish("s.a", b"x", {})
    with pytest.raises(ApiForbidden, match=r"no permission to publish to 's\.a'"):
        client(None)[0].publish("s.a", b"x", {})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (NoResponders("s"), "JetStream is not enabled on the server, or not for this account"),
        (error(503, 10039, "not for the account"), "JetStream is off: not for the account"),
        (error(503, 10076, "not enabled"), "JetStream is off: not enabled"),
    ],
)
def test_a_server_without_jetstream_is_a_wrong_setting(answer: Answer, text: str) -> None:
    jetstream, connection = client(answer)
    with pytest.raises(ConfigError, match=text):
        streams.check_jetstream(jetstream, streams.StreamCache())
    assert connection.waited == []


def test_the_check_goes_on_where_it_may_not_ask() -> None:
    cache = streams.StreamCache()
    streams.check_jetstream(client(None)[0], cache)
    assert cache.lookup_denied
    with pytest.raises(Unavailable, match="does not answer properly: strange"):
        streams.check_jetstream(client(error(400, 1, "strange"))[0], cache)


def test_a_stream_that_is_not_there_or_hidden_is_none() -> None:
    cache = streams.StreamCache()
    assert streams.stream_info(client(error(404, NO_STREAM))[0], cache, "S") is None
    assert cache.info_denied == set()
    assert streams.stream_info(client(None)[0], cache, "S") is None
    assert cache.info_denied == {"S"}
    with pytest.raises(Unavailable, match="stream 'S': strange"):
        streams.stream_info(client(error(400, 1, "strange"))[0], cache, "S")


def test_names_come_in_pages() -> None:
    pages = [orjson.dumps({"streams": names, "total": 3}) for names in (["A", "B"], ["C"])]
    jetstream, connection = client(*pages)
    assert streams.stream_names(jetstream, "t") == ["A", "B", "C"]
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
        (error(500, 10074, "replicas > 1"), "cannot create the stream 'S': replicas > 1"),
    ],
)
def test_why_a_stream_cannot_be_made(answer: Answer, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        streams.create(client(answer)[0], "S", ["s.>"], NatsSettings())


def test_a_server_that_does_not_answer_is_no_wrong_setting() -> None:
    with pytest.raises(Unavailable):
        streams.create(client(Unavailable("silence"))[0], "S", ["s.>"], NatsSettings())


def test_requests_that_are_sent_together_are_repeated_where_they_failed() -> None:
    jetstream, connection = client(b'{"n":1}', error(503, 1), error(404, NO_STREAM), b'{"n":2}')
    first, second, third = jetstream.request_all([("A", None), ("B", None), ("C", None)])
    assert (first, second) == ({"n": 1}, {"n": 2})
    assert isinstance(third, ApiError)
    assert [subject.rpartition(".")[2] for subject, *_ in connection.asked] == ["A", "B", "C", "B"]
    assert all(isinstance(one, Unavailable) for one in client(error(500, 1))[0].request_all([("A", None)] * 2))


def test_so_many_requests_are_on_their_way_together() -> None:
    sizes: list[int] = []
    jetstream, connection = client(b"{}")
    together = connection.request_all
    connection.request_all = lambda requests, *more: sizes.append(len(requests)) or together(requests, *more)  # type: ignore[method-assign, func-returns-value]
    assert len(jetstream.request_all([("A", None)] * (AT_ONCE + 5))) == AT_ONCE + 5
    assert sizes == [AT_ONCE, 5]


def test_a_request_goes_again_as_soon_as_a_lost_connection_is_there() -> None:
    api, connection = client(Unavailable("not connected"), b"{}")
    connection.up = False
    assert api.request("INFO") == {}
    assert connection.waited == []


def test_a_stream_is_decided_when_it_has_what_its_leader_has_taken() -> None:
    def ends(*lasts: int) -> Callable[[], Any]:
        left = list(lasts)
        return lambda: SimpleNamespace(last=left.pop(0))

    def taken(last: int) -> bytes:
        return error(400, 10071, f"wrong last sequence: {last}")

    js, connection = client(taken(7), NoResponders("none"), taken(6), error(429, 10167), taken(9))
    assert js.decided_last("t", ends(5, 5, 6), 60.0) == 6, "what the leader before had taken more came to nothing"
    assert {asked[:2] for asked in connection.asked} == {("t", b"")}
    for stores_nothing in (10054, 10109, 10169, 10002, 10023):
        js, _ = client(error(400, stores_nothing))
        assert js.decided_last("t", ends(5), 60.0) == 5, "it stores nothing that it is asked to"
    for does_not_say in (error(429, 10167), error(400, 10164, "wrong last sequence"), error(400, 99999, "new")):
        js, _ = client(*[does_not_say] * 9)
        with pytest.raises(Unavailable, match="the leader does not say what it has taken: "):
            js.decided_last("t", ends(5), 0.2)
    js, _ = client(taken(7))
    with pytest.raises(Unavailable, match="taken messages up to 7, and stored those up to 5"):
        js.decided_last("t", ends(5, 5, 5, 5, 5), 0.5)
    js, _ = client(None)
    with pytest.raises(ApiForbidden):
        js.decided_last("t", ends(), 0.5)
