"""The states of a client as the broker sees it, and what leads from one to the other. Pure."""

from __future__ import annotations

from enum import Enum

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command


class SessionState(Enum):
    START = "start"  #: unknown, or gone
    CONNECTED = "connected"


class SessionEvent(Enum):
    OPEN = "open"
    CLOSE = "close"
    PING = "ping"
    WRITE = "write"
    READ = "read"
    CANCEL = "cancel"
    SEND = "send"
    SEND_NOWHERE = "send without a stream"
    MAILBOX_SEND = "mailbox send"
    OFFER = "offer"
    SERVICE_SEND = "service send"
    CREDIT = "credit"
    CONFIRM = "confirm"
    CONFIRM_UNASKED = "confirm of a client that did not announce it"
    SERVER_ONLY = "a command that only a server sends"
    MALFORMED = "no command"
    EXPIRED = "nothing heard for too long"
    TAKEN_OVER = "its address was taken by another client"
    AHEAD = "it sends without end to a stream that is not open yet"
    FOREIGN = "it sent to the broker's own stream what only the broker may"
    BEHIND = "the engine of its stream does not keep up"
    OVERRUN = "its queue is full and the policy is to disconnect"


_S, _C = SessionState.START, SessionState.CONNECTED
#: {state: {event: next state}}. In START everything but OPEN, CLOSE and what is no command gets ERROR 500.
TABLE: dict[SessionState, dict[SessionEvent, SessionState]] = {
    _S: {
        SessionEvent.OPEN: _C,
        SessionEvent.CLOSE: _S,
        SessionEvent.PING: _S,
        SessionEvent.WRITE: _S,
        SessionEvent.READ: _S,
        SessionEvent.CANCEL: _S,
        SessionEvent.SEND: _S,
        SessionEvent.SEND_NOWHERE: _S,
        SessionEvent.MAILBOX_SEND: _S,
        SessionEvent.OFFER: _S,
        SessionEvent.SERVICE_SEND: _S,
        SessionEvent.CREDIT: _S,
        SessionEvent.CONFIRM: _S,
        SessionEvent.CONFIRM_UNASKED: _S,
        SessionEvent.SERVER_ONLY: _S,
        SessionEvent.MALFORMED: _S,
    },
    _C: {
        SessionEvent.OPEN: _S,
        SessionEvent.CLOSE: _S,
        SessionEvent.PING: _C,
        SessionEvent.WRITE: _C,
        SessionEvent.READ: _C,
        SessionEvent.CANCEL: _C,
        SessionEvent.SEND: _C,
        SessionEvent.SEND_NOWHERE: _S,
        SessionEvent.MAILBOX_SEND: _C,
        SessionEvent.OFFER: _C,
        SessionEvent.SERVICE_SEND: _C,
        SessionEvent.CREDIT: _C,
        SessionEvent.CONFIRM: _C,
        SessionEvent.CONFIRM_UNASKED: _S,
        SessionEvent.SERVER_ONLY: _S,
        SessionEvent.MALFORMED: _C,
        SessionEvent.EXPIRED: _S,
        SessionEvent.TAKEN_OVER: _S,
        SessionEvent.OVERRUN: _S,
        SessionEvent.AHEAD: _S,
        SessionEvent.BEHIND: _S,
        SessionEvent.FOREIGN: _S,
    },
}

#: Which event a command is; a command that is not here only a server sends.
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
