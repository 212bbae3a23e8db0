"""States of a client at the broker, and the table of their transitions. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command
from mama_spark.malamute.protocol.transition_table import TableEnum, TableStep, TransitionTable


class SessionState(TableEnum):
    START = "start"  #: no session: not connected yet, or ended
    CONNECTED = "connected"


class SessionEvent(TableEnum):
    """Events of a session. Values of events that end it are the reasons in the broker event GONE."""

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
    """Actions of the machine; commands with a method of their own need none."""

    OPEN = "make a session and reply OK"
    REPLY_OK = "reply OK"
    REPLY_INVALID = "reply ERROR 500"
    REPLY_FAILED = "reply ERROR 300"
    COUNT_MALFORMED = "count it and say nothing, as the reference does for all that is no command"
    PING = "ping"
    WRITE = "write"
    READ = "read"
    CANCEL = "cancel"
    SEND = "send"
    MAILBOX_SEND = "mailbox send"
    OFFER = "offer"
    SERVICE_SEND = "service send"
    CREDIT = "credit"
    CONFIRM = "confirm"


START, CONNECTED = SessionState.START, SessionState.CONNECTED
_REFUSED = TableStep(START, SessionAction.REPLY_INVALID)
_GONE: TableStep[SessionState, SessionAction] = TableStep(START)
TABLE = TransitionTable[SessionState, SessionEvent, SessionAction](
    {
        START: {
            SessionEvent.OPEN: TableStep(CONNECTED, SessionAction.OPEN),
            SessionEvent.CLOSE: TableStep(START, SessionAction.REPLY_OK),  # the reference crashes
            SessionEvent.PING: _REFUSED,
            SessionEvent.WRITE: _REFUSED,
            SessionEvent.READ: _REFUSED,
            SessionEvent.CANCEL: _REFUSED,
            SessionEvent.SEND: _REFUSED,
            SessionEvent.SEND_WITHOUT_STREAM: _REFUSED,
            SessionEvent.MAILBOX_SEND: _REFUSED,
            SessionEvent.OFFER: _REFUSED,
            SessionEvent.SERVICE_SEND: _REFUSED,
            SessionEvent.CREDIT: _REFUSED,
            SessionEvent.CONFIRM: _REFUSED,
            SessionEvent.CONFIRM_UNANNOUNCED: _REFUSED,
            SessionEvent.SERVER_ONLY: _REFUSED,
            SessionEvent.MALFORMED: TableStep(START, SessionAction.COUNT_MALFORMED),
        },
        CONNECTED: {
            SessionEvent.OPEN: _REFUSED,
            SessionEvent.CLOSE: TableStep(START, SessionAction.REPLY_OK),
            SessionEvent.PING: TableStep(CONNECTED, SessionAction.PING),
            SessionEvent.WRITE: TableStep(CONNECTED, SessionAction.WRITE),
            SessionEvent.READ: TableStep(CONNECTED, SessionAction.READ),
            SessionEvent.CANCEL: TableStep(CONNECTED, SessionAction.CANCEL),
            SessionEvent.SEND: TableStep(CONNECTED, SessionAction.SEND),
            SessionEvent.SEND_WITHOUT_STREAM: TableStep(START, SessionAction.REPLY_FAILED),
            SessionEvent.MAILBOX_SEND: TableStep(CONNECTED, SessionAction.MAILBOX_SEND),
            SessionEvent.OFFER: TableStep(CONNECTED, SessionAction.OFFER),
            SessionEvent.SERVICE_SEND: TableStep(CONNECTED, SessionAction.SERVICE_SEND),
            SessionEvent.CREDIT: TableStep(CONNECTED, SessionAction.CREDIT),
            SessionEvent.CONFIRM: TableStep(CONNECTED, SessionAction.CONFIRM),
            SessionEvent.CONFIRM_UNANNOUNCED: TableStep(START, SessionAction.REPLY_FAILED),
            SessionEvent.SERVER_ONLY: _REFUSED,
            SessionEvent.MALFORMED: TableStep(CONNECTED, SessionAction.COUNT_MALFORMED),
            SessionEvent.EXPIRED: _GONE,
            SessionEvent.TAKEN_OVER: _GONE,
            SessionEvent.SENT_TOO_EARLY: _GONE,
            SessionEvent.RESERVED_SUBJECT: _GONE,
            SessionEvent.TOO_MANY_HEADERS: _GONE,
            SessionEvent.BACKLOG_FULL: _GONE,
            SessionEvent.QUEUE_FULL: _GONE,
        },
    }
)

#: The event of each command of clients; other commands are sent by servers only.
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
