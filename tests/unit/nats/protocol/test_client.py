"""The client's side of a connection without I/O: states, credentials, errors, and the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.nats.protocol.client import _HANDLERS, PING_INTERVAL, ClientProtocol, State
from mama_spark.nats.protocol.client_events import (
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

from tests.support.nats.client_protocol import (
    ACK,
    DENIED,
    INBOX,
    INFO,
    LOGIN,
    MSG,
    ODD,
    OK,
    PING,
    PONG,
    REFUSED,
    info,
    kinds,
    made,
)
from tests.support.tables import each

Does = Callable[[ClientProtocol], Sequence[Event]]
When = Callable[[float], bool]
AWAKE = (0.0, 0.0)

C, T, A, U, L = State.CONNECTING, State.TLS, State.AUTHENTICATING, State.UP, State.LOST
#: What comes or happens in which state -> the state after it, and the events.
TABLE: list[tuple[State, bytes | Does, State, Sequence[type]]] = [
    (L, lambda c: c.connect(0.0, lambda _: {}), C, []),
    *((L, data, L, []) for data in (INFO, PING, MSG)),
    (L, lambda c: c.closed("x"), L, []),
    (L, lambda c: c.tick(1e9), L, []),
    (C, INFO, A, [Write]),
    (C, info(tls_required=True), T, [StartTls]),
    *((C, data, L, [Lost]) for data in (PING, PONG, OK, MSG, REFUSED, ODD)),
    (T, lambda c: c.secured(), A, [Write]),
    *((T, data, L, [Lost]) for data in (INFO, PING, MSG)),
    (A, PONG, U, [Connected]),
    (A, INFO, A, [InfoChanged]),
    (A, PING, A, [Write]),
    (A, OK, A, []),
    *((A, data, L, [Lost]) for data in (MSG, DENIED, ODD)),
    (U, INFO, U, [InfoChanged]),
    (U, PING, U, [Write]),
    (U, OK, U, []),
    *((U, data, U, [Received]) for data in (MSG, b"HMSG a 7 12 12\r\nNATS/1.0\r\n\r\n\r\n")),
    (U, ACK % (3, 1), U, [Acked]),
    (U, DENIED, U, [Denied]),
    (U, ODD, U, [Complaint]),
    (U, PONG, U, []),  # nobody asked for it
    *((state, lambda c: c.closed("x"), L, [Lost]) for state in (C, T, A, U)),
    *((state, lambda c: c.tick(5.0), L, [Lost]) for state in (C, T, A)),
    *((state, b"HTTP/1.1 400 Bad Request\r\n", L, [Lost]) for state in (C, T, A, U)),
]  # fmt: skip


@each("before,does,after,events", TABLE)
def test_each_state_goes_where_the_table_says(
    before: State, does: bytes | Does, after: State, events: Sequence[type]
) -> None:
    client = made(before)
    assert kinds(client.receive(does) if isinstance(does, bytes) else does(client)) == events
    assert client.state is after


def test_the_table_has_each_frame_that_a_state_takes() -> None:
    rows = {(before, does.split()[0].decode()) for before, does, *_ in TABLE if isinstance(does, bytes)}
    assert {(state, name) for state, handlers in _HANDLERS.items() for name in handlers} - rows == set()


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
