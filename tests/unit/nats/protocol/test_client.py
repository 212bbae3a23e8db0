"""The client's side of a connection without I/O: states, credentials, hostile servers, reads that are cut anywhere."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, TooLarge, Unavailable
from mama_spark.nats.protocol.client import PING_INTERVAL, ClientProtocol, State
from mama_spark.nats.protocol.client_events import (
    FATAL,
    Acked,
    Cause,
    Complaint,
    Connected,
    Denied,
    Event,
    InfoChanged,
    Lost,
    Ponged,
    Received,
    StartTls,
    Write,
)
from mama_spark.nats.protocol.parser import Frame, read_frame
from mama_spark.nats.protocol.records import DeliveryParser

from tests.support.hostile_frames import hostile_frames
from tests.support.memory import peak_of
from tests.support.nats.deliveries import SID, NatsDelivery, frame, reply
from tests.support.tables import each
from tests.support.tiers import examples

INBOX = b"_INBOX.me."
LOGIN = {"user": "bob", "pass": "s3cret"}
ACK = b'MSG _INBOX.me.%012d 1 22\r\n{"stream":"S","seq":%d}\r\n'


def info(**fields: Any) -> bytes:
    return b"INFO %b\r\n" % orjson.dumps({"server_name": "n", "version": "2.11.3", "headers": True, **fields})


def made(state: State, *, tls: bool = False) -> ClientProtocol:
    """A protocol that has come to a state, at time 0."""
    client = ClientProtocol("me", "1", tls=tls or state is State.TLS, inbox=INBOX)
    if state is State.LOST:
        return client
    client.connect(0.0, lambda _: LOGIN)
    if state is State.CONNECTING:
        return client
    client.receive(info(tls_available=tls or state is State.TLS))
    if state is State.TLS:
        return client
    if tls:
        client.secured()
    if state is not State.AUTHENTICATING:
        client.receive(b"PONG\r\n")
    assert client.state is state
    return client


def kinds(events: Sequence[Event]) -> list[type]:
    return [type(event) for event in events]


Does = Callable[[ClientProtocol], Sequence[Event]]
When = Callable[[float], bool]
AWAKE = (0.0, 0.0)


def gets(data: bytes) -> Does:
    return lambda client: client.receive(data)


INFO, PING, PONG, OK, MSG = info(), b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"MSG a 7 1\r\nx\r\n"
REFUSED, DENIED, ODD = (
    b"-ERR 'Authorization Violation'\r\n", b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n",
    b"-ERR 'Maximum Subscriptions Exceeded'\r\n",
)  # fmt: skip
C, T, A, U, L = State.CONNECTING, State.TLS, State.AUTHENTICATING, State.UP, State.LOST
#: What happens in which state -> the state after it, and the events.
TABLE: list[tuple[State, str, Does, State, Sequence[type]]] = [
    (L, "connect", lambda c: c.connect(0.0, lambda _: {}), C, []),
    *((L, f"{data[:4]!r}", gets(data), L, []) for data in (INFO, PING, MSG)),
    (L, "closed", lambda c: c.closed("x"), L, []),
    (L, "tick", lambda c: c.tick(1e9), L, []),
    (C, "INFO", gets(INFO), A, [Write]),
    (C, "INFO that requires TLS", gets(info(tls_required=True)), T, [StartTls]),
    *((C, f"{data[:4]!r}", gets(data), L, [Lost]) for data in (PING, PONG, OK, MSG, REFUSED, ODD)),
    (T, "secured", lambda c: c.secured(), A, [Write]),
    *((T, f"{data[:4]!r}", gets(data), L, [Lost]) for data in (INFO, PING, MSG)),
    (A, "PONG", gets(PONG), U, [Connected]),
    (A, "INFO", gets(INFO), A, [InfoChanged]),
    (A, "PING", gets(PING), A, [Write]),
    (A, "+OK", gets(OK), A, []),
    *((A, f"{data[:9]!r}", gets(data), L, [Lost]) for data in (MSG, REFUSED, DENIED, ODD)),
    (U, "INFO", gets(INFO), U, [InfoChanged]),
    (U, "PING", gets(PING), U, [Write]),
    (U, "+OK", gets(OK), U, []),
    (U, "MSG", gets(MSG), U, [Received]),
    (U, "ack", gets(ACK % (3, 1)), U, [Acked]),
    (U, "denied", gets(DENIED), U, [Denied]),
    (U, "complaint", gets(ODD), U, [Complaint]),
    (U, "refused", gets(REFUSED), L, [Lost]),
    (U, "tick early", lambda c: c.tick(1.0), U, []),
    (U, "tick", lambda c: c.tick(PING_INTERVAL), U, [Write]),
    (U, "PONG that nobody asked for", gets(PONG), U, []),
    *((state, "closed", lambda c: c.closed("x"), L, [Lost]) for state in (C, T, A, U)),
    *((state, "too late", lambda c: c.tick(5.0), L, [Lost]) for state in (C, T, A)),
    *((state, "no NATS", gets(b"HTTP/1.1 400 Bad Request\r\n"), L, [Lost]) for state in (C, T, A, U)),
]  # fmt: skip


@each("before,what,does,after,events", TABLE)
def test_each_state_goes_where_the_table_says(
    before: State, what: str, does: Does, after: State, events: Sequence[type]
) -> None:
    client = made(before)
    assert kinds(does(client)) == events, what
    assert client.state is after


@pytest.mark.parametrize("state", [state for state in State if state is not State.LOST])
def test_what_a_state_does_not_allow_is_refused(state: State) -> None:
    client = made(state)
    with pytest.raises(Unavailable):
        client.connect(0.0, lambda _: {})
    if state is not State.TLS:
        with pytest.raises(Unavailable):
            client.secured()
    if state is not State.UP:
        for send in (client.send_ping, lambda: client.send_message("a", b"")):
            with pytest.raises(Unavailable):
                send()


def test_who_sends_over_a_lost_connection_hears_why_it_is_lost() -> None:
    client = made(State.UP)
    client.receive(b"-ERR 'User Authentication Expired'\r\n")
    with pytest.raises(Unavailable, match=r"not connected to NATS: .* is lost \(User Authentication Expired\)"):
        client.send_ping()
    client.connect(0.0, lambda _: LOGIN)
    with pytest.raises(Unavailable, match=r"the connection is connecting$"):
        client.send_ping()


def connect_of(events: list[Event]) -> dict[str, Any]:
    (write,) = events
    assert isinstance(write, Write)
    assert write.data.endswith(b"\r\nPING\r\n")
    found: dict[str, Any] = orjson.loads(write.data.removeprefix(b"CONNECT ").partition(b"\r\n")[0])
    return found


def test_connect_says_who_and_what_the_server_can() -> None:
    client = ClientProtocol("me", "0.1")
    client.connect(0.0, lambda nonce: {"nkey": "U", "sig": f"signed {nonce}"})
    asked = connect_of(client.receive(info(nonce="n1", headers=False)))
    assert asked.items() >= {"nkey": "U", "sig": "signed n1", "name": "me", "version": "0.1", "protocol": 1}.items()
    assert not any(asked[key] for key in ("headers", "no_responders", "verbose", "tls_required"))
    assert connect_of(made(State.TLS).secured()).items() >= {"tls_required": True, "headers": True}.items()


# --- credentials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offer", [{}, {"tls_available": True}, {"tls_required": True}], ids=str)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("tls", [False, True])
def test_no_credentials_leave_in_plain_where_tls_is_asked_for(tls: bool, first: bool, offer: dict[str, bool]) -> None:
    """Nor is the file that holds them read."""
    asked: list[str] = []

    def login(nonce: str) -> dict[str, str]:
        asked.append(nonce)
        return LOGIN

    client = ClientProtocol("me", "1", tls=tls, tls_first=first)
    for _ in range(2):  # at each later connection, too
        asked.clear()
        events, secure, plain = client.connect(0.0, login), False, b""
        if not first:
            events += client.receive(info(**offer))
        if StartTls() in events:
            plain += b"".join(e.data for e in events if isinstance(e, Write))
            secure, events = True, client.secured()
            if first:
                events += client.receive(info(**offer))
        if not secure:
            plain += b"".join(e.data for e in events if isinstance(e, Write))
        assert secure == (first or bool(offer and (tls or "tls_required" in offer)))
        assert (b"s3cret" in plain) == (not (tls or first) and not secure)
        if tls and not first and not offer:
            ((lost),) = events
            assert isinstance(lost, Lost)
            assert lost.cause is Cause.NO_TLS
            assert "nothing was sent" in lost.text
            assert not asked
        else:
            assert len(asked) == 1
            client.closed("again")


def test_bytes_behind_a_plain_info_are_not_taken_for_those_of_tls() -> None:
    """Who is in the middle could put answers there, which would be read after the handshake."""
    client = ClientProtocol("me", "1", tls=True, inbox=INBOX)
    client.connect(0.0, lambda _: LOGIN)
    events = client.receive(info(tls_available=True) + ACK % (1, 1))
    assert kinds(events) == [StartTls, Lost]
    assert client.state is State.LOST


def test_credentials_that_cannot_be_read_lose_the_connection_and_are_read_again() -> None:
    client, says = ClientProtocol("me", "1"), ["is being written", ""]

    def login(_: str) -> dict[str, str]:
        if why := says.pop(0):
            raise ConfigError(why)
        return LOGIN

    client.connect(0.0, login)
    assert client.receive(INFO) == [Lost(Cause.REFUSED, "is being written")]
    client.connect(1.0, login)
    assert connect_of(client.receive(INFO))["user"] == "bob"


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*FATAL, "Attempted To Connect To Route Port"])
def test_an_error_behind_which_the_server_closes_ends_the_connection(text: str) -> None:
    for state in (State.AUTHENTICATING, State.UP):
        (lost,) = made(state).receive(b"-ERR '%b'\r\n" % text.title().encode())
        assert isinstance(lost, Lost)
        assert lost.cause is FATAL.get(text, Cause.SERVER)
        assert lost.text.lower() == text.lower()


@pytest.mark.parametrize(
    ("text", "kind", "subject"),
    [
        ('Permissions Violation for Publish to "A.b"', "publish", "A.b"),
        ('Permissions Violation for Subscription to "A.>"', "subscription", "A.>"),
        ('Permissions Violation for Subscription to "a" using queue "q"', "subscription", "a"),
        ('Permissions Violation for Subscription to "a" (sid "5")', "subscription", "a"),
        ('Permissions Violation for Subscription to "a.b", too many tokens', "subscription", "a.b"),
        (r'Permissions Violation for Publish to "a\"b\\c"', "publish", r'a"b\c'),
        ('Permissions Violation for Publish to "it\'s"', "publish", "it's"),
    ],
)
def test_a_permission_violation_names_the_subject_as_it_was_sent(text: str, kind: str, subject: str) -> None:
    assert made(State.UP).receive(b"-ERR '%b'\r\n" % text.encode()) == [Denied(kind, subject)]


def test_the_last_words_of_the_server_say_why_it_closed() -> None:
    client = made(State.UP)
    client.receive(b"-ERR 'Something New'\r\n")
    assert client.closed("end of file") == [Lost(Cause.CLOSED, "Something New")]
    client = made(State.UP)
    client.receive(b"-ERR 'Invalid Subject'\r\n")
    client.receive(PING)
    assert client.closed("end of file") == [Lost(Cause.CLOSED, "end of file")]


# --- the clock -----------------------------------------------------------------------------------------------------


def never(_: float) -> bool:
    return False


def always(_: float) -> bool:
    return True


ALONE = "a server that is gone, and the only one"
#: Who waits when, when something comes, until when what was written flows, between which times the process stood still
#: -> when it is asked by PING (the first times), and when the connection is left.
SILENCES: list[tuple[str, When, When, float, tuple[float, float], list[float], float | None]] = [
    ("a server that is gone, and somebody waits", always, never, 0, AWAKE, [1], 6),
    (ALONE, always, never, 0, AWAKE, [1], 41),
    ("and nobody waits", never, never, 0, AWAKE, [20], 25),
    ("and somebody begins to wait", lambda t: t >= 10, never, 0, AWAKE, [11], 16),
    ("a server that answers pings, and nothing else", always, lambda t: t % 4 == 0.25, 0, AWAKE, [1.25, 5.25], None),
    ("a slow one, whose answers are read late", always, lambda t: t % 5 == 0, 0, AWAKE, [1, 6, 11], None),
    ("an idle one, which is asked now and then", never, lambda t: t % 21 == 0, 0, AWAKE, [20, 40.75], None),
    ("a slow way, until it is dead", always, never, 12, AWAKE, [1], 17),
    ("a process that stood still has not waited", always, lambda t: t == 104, 0, (3, 103.5), [1, 105], 110),
    ("and its server is gone", always, never, 0, (3, 103), [1], 105),
]


@each("what,waits,comes,flows,stopped,pings,left", SILENCES)
def test_a_server_that_says_nothing_is_asked_and_left(
    what: str, waits: When, comes: When, flows: float, stopped: tuple[float, float], pings: list[float], left: float
) -> None:
    client, asked, now = made(State.UP), list[float](), 0.0
    client.tick(now, waits(now))
    while client.state is State.UP and now < 120:
        now += 0.25
        if stopped[0] < now < stopped[1]:
            continue
        if comes(now):
            client.receive(b"MSG a 7 0\r\n\r\n")
        events = client.tick(now, waits(now), int(min(now, flows) * 1000), what != ALONE)
        assert client.state is not State.UP or now <= (client.wake_at() or 0.0), what
        if events == [Write(PING)]:
            asked.append(now)
    assert asked[: len(pings)] == pings, what
    assert (now if client.lost else None) == left, what
    assert not client.lost or (isinstance(events[-1], Lost) and events[-1].cause is Cause.STALE)


def test_a_server_that_has_greeted_may_take_longer() -> None:
    """The time of a server that is silent is short where others wait for their turn."""
    silent, slow = ClientProtocol("me", "1"), ClientProtocol("me", "1")
    for client in (silent, slow):
        client.connect(0.0, lambda _: LOGIN, 1.0, 3.0)
    slow.receive(INFO)
    assert (kinds(silent.tick(1.0)), kinds(slow.tick(1.0)), kinds(slow.tick(3.0))) == ([Lost], [], [Lost])


def test_a_way_that_is_always_slow_is_not_left_for_ever() -> None:
    """Each new connection is given more time, unless the last one was there for long."""
    client, begun, lives = made(State.UP), 0.0, list[float]()
    for answered in (0, 0, 0, 0, 0, 0, 130, 0):
        now = begun
        client.tick(now, waits=True)
        while not client.lost:
            now += 0.5
            if now - begun <= answered:
                client.receive(PONG)
            client.tick(now, waits=True)
        lives.append(now - begun - answered)
        begun = now
        client.connect(now, lambda _: LOGIN)
        client.receive(INFO + PONG)
    assert lives == [1 + patience for patience in (5, 10, 20, 40, 60, 60, 5, 10)]


def test_a_connection_that_was_there_for_long_ends_the_patience_however_it_ended() -> None:
    client = made(State.UP)
    for now in (1.0, *range(2, 8)):
        client.tick(now, waits=True)
    for begun, ends in ((10.0, 200.0), (300.0, 306.0)):
        assert client.lost
        client.connect(begun, lambda _: LOGIN)
        client.receive(INFO + PONG)
        for now in range(int(begun), int(ends) + 1):
            if begun < 300:
                client.receive(PONG)
            client.tick(now, waits=True)
        if begun < 300:
            client.closed("the server is restarted")
    assert client.lost


def test_pongs_tell_which_ping_they_answer() -> None:
    client = made(State.UP)
    first, _ = client.send_ping()
    client.tick(PING_INTERVAL)
    second, _ = client.send_ping()
    assert client.receive(PONG * 3) == [Ponged(first), Ponged(second)]


# --- subscriptions, messages ---------------------------------------------------------------------------------------


def test_subscriptions_are_made_again_at_the_next_connection() -> None:
    client = made(State.LOST)
    one, nothing = client.send_subscribe("before")
    assert nothing == b""
    client.connect(0.0, lambda _: LOGIN)
    client.receive(INFO)
    assert client.receive(PONG) == [Write(b"SUB before 1\r\n"), Connected(client.info)]
    two, now = client.send_subscribe("b.>")
    assert (one, two, now) == (1, 2, b"SUB b.> 2\r\n")
    assert client.send_unsubscribe(one) == b"UNSUB 1\r\n"
    assert client.send_unsubscribe(one) == b""
    client.closed("x")
    client.connect(0.0, lambda _: LOGIN)
    client.receive(INFO)
    assert client.receive(PONG)[0] == Write(b"SUB b.> 2\r\n")


def test_a_subscription_too_many_is_the_last_one_that_was_made_and_not_made_again() -> None:
    client = made(State.UP)
    for subject in ("inbox", "b", "c"):
        client.send_subscribe(subject)
    assert client.receive(ODD * 3)[1::2] == [Denied("limit", "c"), Denied("limit", "b")], "one is always taken"
    assert client.send_unsubscribe(3) == b""
    client.closed("x")
    client.connect(0.0, lambda _: LOGIN)
    assert client.receive(INFO + PONG)[1] == Write(b"SUB inbox 1\r\n")


def test_a_new_connection_forgets_what_was_cut() -> None:
    client = made(State.UP)
    client.receive(b"MSG a 7 70000\r\nonly the beginning")
    client.closed("x")
    client.connect(0.0, lambda _: LOGIN)
    assert kinds(client.receive(INFO + PONG + MSG)) == [Write, Connected, Received]


def test_the_servers_of_the_cluster_are_told() -> None:
    (changed,) = made(State.UP).receive(info(connect_urls=["a:4222", "[::1]:4222"]))
    assert isinstance(changed, InfoChanged)
    assert changed.info.connect_urls == ("a:4222", "[::1]:4222")
    assert changed.info.version_numbers == (2, 11)


def test_a_message_is_one_frame_and_not_larger_than_the_server_takes() -> None:
    client = made(State.UP)
    assert client.send_message("a.b", b"xy", b"re") == b"PUB a.b re 2\r\nxy\r\n"
    assert client.send_message("a", b"", headers={"K": "v"}) == b"HPUB a 18 18\r\nNATS/1.0\r\nK: v\r\n\r\n\r\n"
    client.receive(info(max_payload=20))
    client.send_message("a", bytes(20))
    client.send_message("a", bytes(2), headers={"K": "v"})
    for payload, headers in ((bytes(21), None), (bytes(3), {"K": "v"})):
        with pytest.raises(TooLarge):
            client.send_message("a", payload, headers=headers)


# --- any bytes -----------------------------------------------------------------------------------------------------

FRAMES = [
    INFO, PING, PONG, OK, MSG, DENIED, ODD, b"MSG big 7 70000\r\n%b\r\n" % bytes(70_000),
    b"HMSG _INBOX.me.000000000007 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"MSG a 7 re 0\r\n\r\n", frame(NatsDelivery("s", None, b"small"), reply(1)),
    frame(NatsDelivery("s", [("A", ["b"])], bytes(9_000)), reply(2)), *(ACK % (n, n) for n in range(3)),
]  # fmt: skip


def summary(events: list[Event]) -> list[object]:
    """Events, however acknowledgements are grouped."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Acked):
            found += [("ack", int(t)) for c in event.columns for t in np.concatenate(c.tokens)]
        else:
            found.append(event.frame.subject if isinstance(event, Received) else event)
    return found


@examples(2_000, few=200)
@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.lists(st.integers(0, 10**6), max_size=12))
def test_reads_may_be_cut_anywhere(frames: list[bytes], at: list[int]) -> None:
    stream = b"".join([info(), PONG, *frames])
    cuts = sorted({n % (len(stream) + 1) for n in at} | {0, len(stream)})
    whole, cut = (made(State.LOST) for _ in range(2))
    deliveries = [DeliveryParser(SID) for _ in range(2)]
    for client, parser in zip((whole, cut), deliveries, strict=True):
        client.connect(0.0, lambda _: LOGIN)
        client.deliveries[SID] = partial(parser.take, most=100)
    found = [event for low, high in pairwise(cuts) for event in cut.receive(stream[low:high])]
    assert summary(found) == summary(whole.receive(stream))
    assert cut.state is whole.state is State.UP
    assert deliveries[0].buffer == deliveries[1].buffer
    assert len(deliveries[0].buffer) == sum(b"$JS.ACK" in frame for frame in frames)


def test_a_large_message_in_many_reads_is_looked_at_twice_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def read(data: bytes, at: int) -> Frame | None:
        looks.append(at)
        return read_frame(data, at)

    monkeypatch.setattr("mama_spark.nats.protocol.client.read_frame", read)
    client = made(State.UP)
    message = b"MSG a 7 3000000\r\n%b\r\n" % bytes(3_000_000)
    events = [e for at in range(0, len(message), 4096) for e in client.receive(message[at : at + 4096])]
    assert kinds(events) == [Received]
    assert len(looks) < 6


BAD = [
    b"MSG a 7 99999999999\r\n", b"MSG a 7 60000000\r\n", b"MSG a 7 -1\r\n", b"MSG\r\n",
    b"HMSG a 7 60000000 60000000\r\n", b"HMSG a 7 9 3\r\n", b"HMSG a 7 3 3\r\nabc\r\n",
    b"\r\n",
    b"MSG _INBOX.me.000000000001 1 22\r\n", b'{"stream":"S","seq":', b"INFO []\r\n", b"INFO {\r\n",
    b'INFO {"max_payload":"x"}\r\n', b'INFO {"connect_urls":{"a":1}}\r\n', b'INFO {"max_payload":-1}\r\n',
    b"-ERR\r\n",
    b"-ERR ''\r\n", b"-ERR '", b"A" * 5000, b"\x00", b"\xff\xfe", b"PING\n", b"PONG\r", b'INFO {"nonce":7}\r\n',
]  # fmt: skip
PIECES = st.one_of(st.sampled_from(FRAMES), st.binary(max_size=60), st.sampled_from(BAD))


@examples(20_000, few=200)
@given(st.sampled_from([C, T, A, U]), st.lists(PIECES, max_size=8), st.booleans())
def test_no_bytes_of_a_server_raise_or_bring_out_more_than_events(state: State, pieces: list[bytes], tls: bool) -> None:
    client = made(state, tls=tls)
    for piece in pieces:
        before = client.state
        events = client.receive(piece)
        lost = [event for event in events if isinstance(event, Lost)]
        assert len(lost) == (before is not L and client.state is L)
        assert not lost or events[-1] is lost[0]
        assert len(client._rest) <= 5_000 + 71_000
    if client.state is not L:
        client.closed("end")
    client.connect(0.0, lambda _: LOGIN)
    assert client.state is C, "usable again"


HOSTILE = [frame for frame in (*FRAMES, *BAD) if len(frame) < 10_000]


class Attacked:
    """A client whose connections last until they are lost, or until the next eight frames."""

    def __init__(self) -> None:
        self.client, self._parser, self._sent = made(State.LOST), DeliveryParser(SID), 0
        self.client.deliveries[SID] = partial(self._parser.take, most=100)

    def read(self, frames: list[bytes]) -> None:
        for at, data in enumerate(frames):
            if at % 8 == 0 or self.client.lost:
                self.client.closed("end")
                self.client.connect(0.0, lambda _: LOGIN)
                self.client.receive((b"", INFO, INFO + PONG)[at % 3])
                self._parser.take_buffer()
                self._sent = 0
            self._sent += len(data)
            self.client.receive(data)
            assert len(self.client._rest) <= (0 if self.client.lost else self._sent)


def read_hostile_frames() -> None:
    Attacked().read(hostile_frames(HOSTILE, np.random.default_rng(22), 1_000))


def test_hostile_frames_take_no_memory() -> None:
    assert peak_of(read_hostile_frames).python < 4 << 20, "1.3 MB with the frames; 60 MB are announced"


@pytest.mark.explore
def test_a_million_hostile_frames_take_no_memory() -> None:
    chance, attacked, process = np.random.default_rng(23), Attacked(), psutil.Process()
    used = []
    for _ in range(10):
        for _ in range(100):
            attacked.read(hostile_frames(HOSTILE, chance, 1_000))
        gc.collect()
        used.append(process.memory_info().rss)
    assert used[-1] - used[1] < 16 << 20, f"memory by tenths: {[size >> 20 for size in used]} MiB"


def test_a_subscription_that_was_accepted_or_made_later_is_not_the_one_that_is_too_many() -> None:
    client = made(State.UP)
    for subject in ("inbox", "accepted"):
        client.send_subscribe(subject)
    client.send_ping()
    client.receive(b"PONG\r\n")
    full = b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert [type(event) for event in client.receive(full)] == [Complaint]
    client.send_subscribe("refused")
    client.send_ping()
    client.send_subscribe("later")
    assert client.receive(full)[1:] == [Denied("limit", "refused")]
