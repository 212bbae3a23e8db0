"""States of a client at the broker, and the table of their transitions. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command
from mama_spark.malamute.protocol.transition_table import TableEnum, TableStep, TransitionTable


class SessionState(TableEnum):
    START = "start"  #: no session: not connected yet, or ended
    CONNECTED = "connected"


class SessionEvent(TableEnum):
    """Values of events that end a session are the reasons in the broker event GONE."""

    OPEN = "open"
    CLOSE = "close"
    PING = "ping"
    WRITE = "write"
    READ = "read"
    CANCEL = "cancel"
    SEND = "send"
    SEND_WITHOUT_STREAM = "send without a stream"
    MAILBOX_SEND = "mailbox send"
    OFFER = "offer"
    SERVICE_SEND = "service send"
    CREDIT = "credit"
    CONFIRM = "confirm"
    CONFIRM_UNANNOUNCED = "confirm of a client that did not announce it"
    SERVER_ONLY = "a command that only a server sends"
    MALFORMED = "no command"
    EXPIRED = "nothing heard for too long"
    TAKEN_OVER = "its address was taken by another client"
    SENT_TOO_EARLY = "it sends without end to a stream that is not open yet"
    RESERVED_SUBJECT = "it sent to the broker's own stream what only the broker may"
    TOO_MANY_HEADERS = "a message of it has more headers than any may have"
    BACKLOG_FULL = "the engine of its stream does not keep up"
    QUEUE_FULL = "its queue is full and the policy is to disconnect"


class SessionAction(TableEnum):
    OPEN = "make a session and reply OK"
    EXECUTE = "execute the command"
    REPLY_OK = "reply OK"
    REPLY_INVALID = "reply ERROR 500"
    REPLY_FAILED = "reply ERROR 300"
    COUNT_MALFORMED = "count it, and do not answer, as the original broker"


#: Other commands are sent by servers only.
EVENTS: dict[type[Command], SessionEvent] = {
    commands.Open: SessionEvent.OPEN,
    commands.Close: SessionEvent.CLOSE,
    commands.Ping: SessionEvent.PING,
    commands.StreamWrite: SessionEvent.WRITE,
    commands.StreamRead: SessionEvent.READ,
    commands.StreamCancel: SessionEvent.CANCEL,
    commands.StreamSend: SessionEvent.SEND,
    commands.MailboxSend: SessionEvent.MAILBOX_SEND,
    commands.ServiceOffer: SessionEvent.OFFER,
    commands.ServiceSend: SessionEvent.SERVICE_SEND,
    commands.Credit: SessionEvent.CREDIT,
    commands.Confirm: SessionEvent.CONFIRM,
}

START, CONNECTED = SessionState.START, SessionState.CONNECTED
_REFUSED = TableStep(START, SessionAction.REPLY_INVALID)
_FAILED = TableStep(START, SessionAction.REPLY_FAILED)
_CLOSED = TableStep(START, SessionAction.REPLY_OK)
TABLE = TransitionTable[SessionState, SessionEvent, SessionAction](
    {
        START: {
            **dict.fromkeys(EVENTS.values(), _REFUSED),
            SessionEvent.SEND_WITHOUT_STREAM: _REFUSED,
            SessionEvent.CONFIRM_UNANNOUNCED: _REFUSED,
            SessionEvent.SERVER_ONLY: _REFUSED,
            SessionEvent.OPEN: TableStep(CONNECTED, SessionAction.OPEN),
            SessionEvent.CLOSE: _CLOSED,  # the reference crashes
            SessionEvent.MALFORMED: TableStep(START, SessionAction.COUNT_MALFORMED),
        },
        CONNECTED: {
            **dict.fromkeys(SessionEvent, TableStep(START)),  # all end the session, except:
            **dict.fromkeys(EVENTS.values(), TableStep(CONNECTED, SessionAction.EXECUTE)),
            SessionEvent.OPEN: _REFUSED,
            SessionEvent.CLOSE: _CLOSED,
            SessionEvent.SEND_WITHOUT_STREAM: _FAILED,
            SessionEvent.CONFIRM_UNANNOUNCED: _FAILED,
            SessionEvent.SERVER_ONLY: _REFUSED,
            SessionEvent.MALFORMED: TableStep(CONNECTED, SessionAction.COUNT_MALFORMED),
        },
    }
)
