"""States of a broker's client, and the table of their transitions. Pure."""

from __future__ import annotations

from enum import Enum

from mama_spark.contracts.errors import Unavailable

from ..protocol import commands
from ..protocol.commands import Command
from ..protocol.transition_table import TableStep, TransitionTable


class ClientState(Enum):
    START = "start"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    TERMINATING = "terminating"
    CLOSED = "closed"
    FAILED = "failed"  #: the broker refused OPEN


class ClientEvent(Enum):
    CONNECT = "connect"
    OK = "OK"
    REFUSED = "ERROR, but not 500"
    INVALID = "ERROR 500"
    PONG = "PONG"
    DELIVERY = "a delivery"
    CONFIRM = "CONFIRM"
    OTHER = "a command that only a client sends"
    MALFORMED = "no command"
    SILENCE = "nothing heard for too long"
    UNREACHABLE = "the deadline of connect passed"
    CLOSE = "close"
    FINISHED = "CLOSE was answered, or no call waits for an answer"


class ClientAction(Enum):
    OPEN = "send OPEN"
    RESTORE = "send again what is remembered, then the calls that wait"
    REOPEN = "send OPEN again on the same connection"
    RECONNECT = "ask for a new connection and send OPEN there"
    ANSWER_CALL = "the oldest call that is no PING has its answer"
    ANSWER_PING = "the oldest PING has its answer"
    DELIVER = "count the delivery and give it to the application"
    CONFIRM = "give the confirmation to the application"
    COUNT_MALFORMED = "count the message"
    FAIL = "end all calls: the broker refused the client"
    END = "end all calls: the client is closed"


_Step = TableStep[ClientState, ClientAction]
_Row = dict[ClientEvent, _Step]


def _to(state: ClientState, action: ClientAction | None = None) -> _Step:
    return TableStep(state, action)


def _row(state: ClientState, **steps: _Step) -> _Row:
    """Steps of one state by the names of events; commands of the broker without a step are ignored."""
    ignored = dict.fromkeys(
        (ClientEvent.OK, ClientEvent.REFUSED, ClientEvent.INVALID, ClientEvent.PONG, ClientEvent.DELIVERY), _to(state)
    )
    malformed = _to(state, ClientAction.COUNT_MALFORMED)
    return {
        **ignored,
        ClientEvent.CONFIRM: _to(state, ClientAction.CONFIRM),
        ClientEvent.OTHER: malformed,
        ClientEvent.MALFORMED: malformed,
        **{ClientEvent[name]: step for name, step in steps.items()},
    }


_END = _to(ClientState.CLOSED, ClientAction.END)
_FAIL = _to(ClientState.FAILED, ClientAction.FAIL)
_RESTORE = _to(ClientState.CONNECTED, ClientAction.RESTORE)

TABLE: TransitionTable[ClientState, ClientEvent, ClientAction] = TransitionTable(
    {
        ClientState.START: _row(ClientState.START, CONNECT=_to(ClientState.CONNECTING, ClientAction.OPEN), CLOSE=_END),
        ClientState.CONNECTING: _row(  # ERROR 500 answers commands that reached the broker before OPEN
            ClientState.CONNECTING,
            OK=_RESTORE,
            REFUSED=_FAIL,
            SILENCE=_to(ClientState.CONNECTING, ClientAction.RECONNECT),
            UNREACHABLE=_END,
            CLOSE=_END,
        ),
        ClientState.CONNECTED: _row(
            ClientState.CONNECTED,
            OK=_to(ClientState.CONNECTED, ClientAction.ANSWER_CALL),
            REFUSED=_to(ClientState.CONNECTED, ClientAction.ANSWER_CALL),
            INVALID=_to(ClientState.RECONNECTING, ClientAction.REOPEN),
            PONG=_to(ClientState.CONNECTED, ClientAction.ANSWER_PING),
            DELIVERY=_to(ClientState.CONNECTED, ClientAction.DELIVER),
            SILENCE=_to(ClientState.RECONNECTING, ClientAction.RECONNECT),
            CLOSE=_to(ClientState.TERMINATING),
        ),
        ClientState.RECONNECTING: _row(
            ClientState.RECONNECTING,
            OK=_RESTORE,
            REFUSED=_FAIL,
            SILENCE=_to(ClientState.RECONNECTING, ClientAction.RECONNECT),
            CLOSE=_END,
        ),
        ClientState.TERMINATING: _row(
            ClientState.TERMINATING,
            OK=_to(ClientState.TERMINATING, ClientAction.ANSWER_CALL),
            REFUSED=_to(ClientState.TERMINATING, ClientAction.ANSWER_CALL),
            INVALID=_END,
            PONG=_to(ClientState.TERMINATING, ClientAction.ANSWER_PING),
            DELIVERY=_to(ClientState.TERMINATING, ClientAction.DELIVER),
            SILENCE=_END,
            CLOSE=_to(ClientState.TERMINATING),
            FINISHED=_END,
        ),
        ClientState.CLOSED: _row(ClientState.CLOSED, CLOSE=_END),
        ClientState.FAILED: _row(ClientState.FAILED, CLOSE=_END),
    }
)

_EVENTS: dict[type[Command], ClientEvent] = {
    commands.Ok: ClientEvent.OK,
    commands.Pong: ClientEvent.PONG,
    commands.StreamDeliver: ClientEvent.DELIVERY,
    commands.MailboxDeliver: ClientEvent.DELIVERY,
    commands.ServiceDeliver: ClientEvent.DELIVERY,
    commands.Confirm: ClientEvent.CONFIRM,
}


def event_of(command: Command) -> ClientEvent:
    event = _EVENTS.get(type(command))
    if event is not None:
        return event
    if isinstance(command, commands.Error):
        return ClientEvent.INVALID if command.code == commands.StatusCode.COMMAND_INVALID else ClientEvent.REFUSED
    return ClientEvent.OTHER


def require_connected(state: ClientState) -> None:
    """Check that a client in this state is connected.

    :raises Unavailable: not connected now
    """
    if state is not ClientState.CONNECTED:
        raise Unavailable(f"not connected ({state.value})")
