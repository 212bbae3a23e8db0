"""The states of a client as the broker sees it, and what leads from one to the other. Pure."""

from __future__ import annotations

from enum import Enum

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command


class State(Enum):
    START = "start"  #: unknown, or gone
    CONNECTED = "connected"


class Event(Enum):
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


_S, _C = State.START, State.CONNECTED
#: {state: {event: next state}}. In START everything but OPEN, CLOSE and what is no command gets ERROR 500.
TABLE: dict[State, dict[Event, State]] = {
    _S: {
        Event.OPEN: _C, Event.CLOSE: _S, Event.PING: _S, Event.WRITE: _S, Event.READ: _S, Event.CANCEL: _S,
        Event.SEND: _S, Event.SEND_NOWHERE: _S, Event.MAILBOX_SEND: _S, Event.OFFER: _S, Event.SERVICE_SEND: _S,
        Event.CREDIT: _S, Event.CONFIRM: _S, Event.CONFIRM_UNASKED: _S, Event.SERVER_ONLY: _S, Event.MALFORMED: _S,
    },
    _C: {
        Event.OPEN: _S, Event.CLOSE: _S, Event.PING: _C, Event.WRITE: _C, Event.READ: _C, Event.CANCEL: _C,
        Event.SEND: _C, Event.SEND_NOWHERE: _S, Event.MAILBOX_SEND: _C, Event.OFFER: _C, Event.SERVICE_SEND: _C,
        Event.CREDIT: _C, Event.CONFIRM: _C, Event.CONFIRM_UNASKED: _S, Event.SERVER_ONLY: _S, Event.MALFORMED: _C,
        Event.EXPIRED: _S, Event.TAKEN_OVER: _S, Event.OVERRUN: _S, Event.AHEAD: _S,
        Event.BEHIND: _S, Event.FOREIGN: _S,
    },
}  # fmt: skip

#: Which event a command is; a command that is not here only a server sends.
EVENTS: dict[type[Command], Event] = {
    commands.Open: Event.OPEN,
    commands.Close: Event.CLOSE,
    commands.Ping: Event.PING,
    commands.StreamWrite: Event.WRITE,
    commands.StreamRead: Event.READ,
    commands.StreamCancel: Event.CANCEL,
    commands.StreamSend: Event.SEND,
    commands.MailboxSend: Event.MAILBOX_SEND,
    commands.ServiceOffer: Event.OFFER,
    commands.ServiceSend: Event.SERVICE_SEND,
    commands.Credit: Event.CREDIT,
    commands.Confirm: Event.CONFIRM,
}
