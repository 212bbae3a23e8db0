"""The client's side of a connection to a NATS server, without I/O: bytes in, events out. Pure.

The caller owns socket, TLS and clock. It reports what happened (:meth:`ClientProtocol.connect`, ``secured``,
``receive``, ``tick``, ``closed``), carries out the events, and gets the bytes to send from the ``send_`` methods. One
object serves a connection and its successors, on which it subscribes again. Draining needs no state: the PONG to a PING
after UNSUB tells the caller that nothing more comes, and that all it sent was read.

Credentials are written in one place, :meth:`ClientProtocol._log_in`, which is never reached in plain text where TLS was
asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import orjson

from mama_spark.contracts.errors import ConfigError, TooLarge, Unavailable
from mama_spark.contracts.standstill import silent_for

from ..error_codes import denied
from .acks import AckColumns, BulkReader
from .client_events import (
    FATAL,
    TOO_MANY,
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
    ServerInfo,
    StartTls,
    Write,
)
from .frames import message_frame
from .parser import Frame, PartialFrame, ProtocolError, read_frame

#: Takes complete messages of one subscription from an offset on; returns the offset of what it did not take.
Take = Callable[[bytes, int], int]

PING_INTERVAL = 20.0  #: seconds of silence after which a server that nobody waits for is asked whether it is there
SILENCE = 1.0  #: the same where somebody waits: longer than most answers take, so that few PINGs are needless
#: Seconds without a byte after a PING, and since anything up to it moved on: the connection is stale. A live
#: server answers within a round trip, whatever it does meanwhile; a link and a machine may pause for a few seconds. No
#: options: any byte counts on a busy link, and :data:`_ALONE` and :data:`_YOUNG` give a slow way its time.
PATIENCE = 5.0
#: The same where there is no other server to go to: a way that is slow may be too slow for a new connection.
_ALONE = 40.0
#: A client that leaves a connection younger than this waits twice as long at the next one, up to :data:`_MOST`: the
#: only server, or the way to all of them, may be slow, and must get the time to answer.
_YOUNG, _MOST = 120.0, 60.0


class State(Enum):
    LOST = "lost"  #: there is none, or not yet
    CONNECTING = "connecting"  #: waits for the server's INFO
    TLS = "TLS"  #: the caller shakes hands
    AUTHENTICATING = "authenticating"  #: CONNECT was sent
    UP = "up"


#: Given the nonce of the server, the fields of CONNECT that log in; raises :class:`ConfigError`.
Login = Callable[[str], Mapping[str, str]]

_OPENING = (State.CONNECTING, State.TLS, State.AUTHENTICATING)
_NOT_OFFERED: Final = (
    "TLS was asked for (tls:// or a tls option) and this server does not offer it: nothing was sent, no credentials "
    "either. Configure TLS in the server, or ask for none"
)


class ClientProtocol:
    """See the module.

    :param tls: TLS is wanted with every server; without it, with those that require it
    :param tls_first: the handshake comes before the server's INFO
    :param inbox: subject prefix, with its trailing dot, of the acknowledgements that are read in bulk
    :ivar info: INFO of the present or last server
    :ivar informed: the server has greeted
    :ivar doubts: a PING of :meth:`tick` is out, and nothing has come since
    :ivar deliveries: subscription id -> receiver of its messages in bulk
    """

    def __init__(
        self,
        name: str,
        version: str,
        *,
        tls: bool = False,
        tls_first: bool = False,
        inbox: bytes | None = None,
    ) -> None:
        self._name, self._version = name, version
        self._wants_tls, self._tls_first = tls or tls_first, tls_first
        self._bulk = None if inbox is None else BulkReader(inbox)
        self._subscriptions: dict[int, str] = {}  # by id
        self._accepted = 0  #: the last one that the server has accepted, or refused
        self._last_sid = self._last_ping = 0
        self.deliveries: dict[int, Take] = {}
        self.state = State.LOST
        self.info = ServerInfo()
        self._why = ""  # the last connection, or attempt, has ended
        self._left = 0  # connections that were stale, one after another
        self._begin(0.0, lambda _: {}, 0.0, 0.0)

    def _begin(self, now: float, login: Login, greets: float, timeout: float) -> None:
        self._login, self._begun = login, now
        self._greets, self._timeout = greets, timeout
        self._secure = self.informed = False
        self._complaint = ""
        self._pings: deque[tuple[int, int]] = deque()  # sent and not answered (0 = of tick); last subscription before
        self._ticked = self._heard = now
        self.doubts = self._waits = self._elsewhere = False
        self._quiet = 0.0  # seconds without a byte: that somebody has waited, or since the PING
        self._moved: int | None = None
        self._rest = PartialFrame()

    def __repr__(self) -> str:
        return f"<ClientProtocol {self.state.value}, {len(self._subscriptions)} subscriptions>"

    @property
    def lost(self) -> bool:
        return self.state is State.LOST

    # --- the connection ------------------------------------------------------------------------------------------

    def connect(self, now: float, login: Login, greets: float = 5.0, timeout: float = 5.0) -> list[Event]:
        """Note that the socket is connected, or will be. The server must greet within ``greets`` seconds, and the
        connection must be up within ``timeout``."""
        self._require(State.LOST)
        self._begin(now, login, greets, timeout)
        self.state = State.TLS if self._tls_first else State.CONNECTING
        return [StartTls()] if self._tls_first else []

    def secured(self) -> list[Event]:
        """Note that TLS is up: all later bytes go through it."""
        self._require(State.TLS)
        self._secure = True
        if self.informed:
            return self._log_in()
        self.state = State.CONNECTING
        return []

    def closed(self, text: str, cause: Cause = Cause.CLOSED) -> list[Event]:
        """Note the end of the socket, or a failure of TLS; the server's last words tell more."""
        if self.lost:
            return []
        return self._lose(cause, self._complaint or text)

    def tick(self, now: float, waits: bool = False, moved: int = 0, elsewhere: bool = True) -> list[Event]:
        """Check the time limits at ``now``; received bytes must have been passed on before. A standstill of the caller
        is no silence of the server.

        :param waits: a caller waits for the server
        :param moved: while :attr:`doubts`, a value that changes while bytes up to the PING are in transit to the server
        :param elsewhere: there is another server to go to
        """
        step, self._ticked = silent_for(self._ticked, now), now
        if self.state in _OPENING and now >= self._begun + self._opens_within:
            return self._lose(Cause.TIMEOUT, f"no answer within {self._opens_within:.3g} s while {self.state.value}")
        if self.state is not State.UP:
            return []
        waited, self._waits, self._elsewhere = self._waits and waits, waits, elsewhere
        if self.doubts:
            self._quiet = self._quiet + step if self._moved in (moved, None) else 0.0
            self._moved = moved
            if self._quiet < self._patience:
                return []
            return self._lose(Cause.STALE, f"no answer to a ping within {self._quiet:.0f} s")
        self._quiet += step if waited else 0.0
        if self._quiet < SILENCE and now - self._heard < PING_INTERVAL:
            return []
        self.doubts, self._quiet, self._moved = True, 0.0, None
        self._pings.append((0, self._last_sid))
        return [Write(b"PING\r\n")]

    @property
    def _opens_within(self) -> float:
        return self._timeout if self.informed else self._greets

    @property
    def _is_young(self) -> bool:
        return self._ticked - self._begun < _YOUNG

    @property
    def _patience(self) -> float:
        patience = PATIENCE if self._elsewhere else _ALONE
        return min(patience * 2**self._left, _MOST) if self._is_young else patience

    def wake_at(self) -> float | None:
        """Time at which :meth:`tick` has something to do, if nothing comes before."""
        if self.state is State.LOST:
            return None
        if self.state is not State.UP:
            return self._begun + self._opens_within
        if self.doubts:
            return self._ticked + self._patience - self._quiet
        idle = self._heard + PING_INTERVAL
        return min(idle, self._ticked + SILENCE - self._quiet) if self._waits else idle

    # --- received bytes ------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Parse bytes of the server, cut anywhere; an incomplete frame is kept."""
        if self.lost or not data:
            return []
        self._complaint, self._heard = "", self._ticked
        self.doubts = self._waits = False  # nor is the time up to the next tick silence
        self._quiet = 0.0
        events: list[Event] = []
        at = 0
        try:
            while at < len(data) and not self.lost:
                whole: bytes | None = data
                begin, at = at, len(data)
                if self._rest:
                    whole, at = self._rest.add(data, begin)
                    begin = 0
                if whole is not None:
                    self._rest.keep(whole, self._parse(whole, begin, events))
        except ProtocolError as e:
            return events + self._lose(Cause.PROTOCOL, f"what came is not NATS: {e}")
        return events

    def _parse(self, data: bytes, at: int, events: list[Event]) -> int:
        while at < len(data) and not self.lost:
            if self.state is State.TLS:
                raise ProtocolError("bytes in plain text where TLS begins")
            if self._bulk is not None and self.state is State.UP:
                columns: list[AckColumns] = []
                at = self._bulk.read(data, at, columns)
                if columns:
                    events.append(Acked(columns))
            if self.deliveries and self.state is State.UP:
                before = at
                for take in tuple(self.deliveries.values()):
                    at = take(data, at)
                if at > before:
                    continue
            if at == len(data):
                break
            frame = read_frame(data, at)
            if frame is None:
                break
            at = frame.end
            handle = _HANDLERS[self.state].get(frame.op)
            if handle is None:
                raise ProtocolError(f"{frame.op} while {self.state.value}")
            events += handle(self, frame)
        return at

    def _on_info(self, frame: Frame) -> list[Event]:
        assert frame.info is not None
        self.info = ServerInfo.of(frame.info)
        if self.state is not State.CONNECTING:
            return [InfoChanged(self.info)]
        self.informed = True
        if self._secure:
            return self._log_in()
        if not (self._wants_tls or self.info.tls_required):
            return self._log_in()
        if not (self.info.tls_required or self.info.tls_available):
            return self._lose(Cause.NO_TLS, _NOT_OFFERED)
        self.state = State.TLS
        return [StartTls()]

    def _log_in(self) -> list[Event]:
        if self._wants_tls and not self._secure:
            raise AssertionError("credentials in plain text")
        try:
            login = self._login(self.info.nonce)
        except ConfigError as e:
            return self._lose(Cause.REFUSED, str(e))
        asked = {
            "verbose": False,
            "pedantic": False,
            "tls_required": self._secure,
            "name": self._name,
            "lang": "python",
            "version": self._version,
            "protocol": 1,
            "echo": True,
            "headers": self.info.headers,
            "no_responders": self.info.headers,
            **login,
        }
        self.state = State.AUTHENTICATING
        return [Write(b"CONNECT %b\r\nPING\r\n" % orjson.dumps(asked))]

    def _on_first_pong(self, frame: Frame) -> list[Event]:
        self.state = State.UP
        again = b"".join(_sub(sid, subject) for sid, subject in self._subscriptions.items())
        return [*([Write(again)] if again else []), Connected(self.info)]

    def _on_pong(self, frame: Frame) -> list[Event]:
        number, accepted = self._pings.popleft() if self._pings else (0, 0)
        self._accepted = max(self._accepted, accepted)
        return [Ponged(number)] if number else []

    def _on_error(self, frame: Frame) -> list[Event]:
        text = frame.text.strip()
        fatal = next((cause for begin, cause in FATAL.items() if text.lower().startswith(begin)), None)
        if fatal is not None or self.state is not State.UP:
            return self._lose(fatal or Cause.SERVER, text)
        if (violation := denied(text)) is not None:
            return [Denied(*violation)]
        self._complaint = text
        last = self._pings[0][1] if self._pings else self._last_sid  # later ones are answered behind that PONG
        refused = max((sid for sid in self._subscriptions if self._accepted < sid <= last), default=0)
        if text.lower().startswith(TOO_MANY) and refused and len(self._subscriptions) > 1:  # or it closes
            return [Complaint(text), Denied("limit", self._subscriptions.pop(refused))]
        return [Complaint(text)]

    def _lose(self, cause: Cause, text: str) -> list[Event]:
        self._left = self._left * self._is_young + (cause is Cause.STALE)
        self.state, self._why = State.LOST, text
        self._rest = PartialFrame()
        self._login = lambda _: {}
        return [Lost(cause, text)]

    # --- sent bytes ----------------------------------------------------------------------------------------------

    def send_subscribe(self, subject: str) -> tuple[int, bytes]:
        """The id of a new subscription, which lives until :meth:`send_unsubscribe`, and the bytes to write now."""
        self._last_sid += 1
        self._subscriptions[self._last_sid] = subject
        return self._last_sid, _sub(self._last_sid, subject) if self.state is State.UP else b""

    def send_unsubscribe(self, sid: int) -> bytes:
        """Bytes to write now."""
        known = self._subscriptions.pop(sid, None)
        self.deliveries.pop(sid, None)
        return b"UNSUB %d\r\n" % sid if known is not None and self.state is State.UP else b""

    def send_ping(self) -> tuple[int, bytes]:
        """A number that :class:`Ponged` returns, and the bytes to write. Unavailable: not connected, and why."""
        self._require(State.UP)
        self._last_ping += 1
        self._pings.append((self._last_ping, self._last_sid))
        return self._last_ping, b"PING\r\n"

    def send_message(
        self, subject: str, payload: bytes, reply: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Bytes of one message, whose subjects and headers must have been checked.

        :raises Unavailable: not connected; it says why
        :raises TooLarge: for this server
        """
        self._require(State.UP)
        frame = message_frame(subject, payload, reply, headers)
        size = len(frame) - frame.index(b"\r\n") - len(b"\r\n\r\n")
        if size > self.info.max_payload:
            raise TooLarge(f"{size} bytes of headers and payload; this server takes {self.info.max_payload}")
        return frame

    def _require(self, state: State) -> None:
        if self.state is not state:
            why = f" ({self._why})" if self.lost and self._why else ""
            where = "not connected to NATS: " if state is State.UP else ""
            raise Unavailable(f"{where}the connection is {self.state.value}{why}")


def _sub(sid: int, subject: str) -> bytes:
    return b"SUB %b %d\r\n" % (subject.encode(), sid)


_Handler = Callable[[ClientProtocol, Frame], list[Event]]
_ALWAYS: dict[str, _Handler] = {
    "INFO": ClientProtocol._on_info,
    "-ERR": ClientProtocol._on_error,
    "PING": lambda protocol, frame: [Write(b"PONG\r\n")],
    "+OK": lambda protocol, frame: [],
}
#: Frames that may come in each state; any other ends the connection.
_HANDLERS: Mapping[State, Mapping[str, _Handler]] = {
    State.CONNECTING: {"INFO": ClientProtocol._on_info, "-ERR": ClientProtocol._on_error},
    State.AUTHENTICATING: _ALWAYS | {"PONG": ClientProtocol._on_first_pong},
    State.UP: _ALWAYS
    | {"PONG": ClientProtocol._on_pong}
    | dict.fromkeys(("MSG", "HMSG"), lambda protocol, frame: [Received(frame)]),
}
