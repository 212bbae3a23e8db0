"""Sends CONFIRM for mailbox and service messages to senders that requested it. Pure."""

from __future__ import annotations

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import Feature

from ..client_output import ClientOutput
from ..client_session import ClientSession
from .mailbox_store import MailboxMessage


class MailboxReceipts:
    """Confirms messages with a tracker: for the receiver, or for the broker if the receiver cannot confirm."""

    def __init__(self, output: ClientOutput) -> None:
        self._output = output

    def delivered(self, receiver: ClientSession, message: MailboxMessage) -> None:
        """To be called when a message was sent to its receiver."""
        if message.tracker and Feature.CONFIRM in receiver.features:
            for forgotten in receiver.unconfirmed.put(message, message.cost):
                self.report(forgotten, StatusCode.FAILED, b"not confirmed")
        else:
            self.report(message, StatusCode.SUCCESS, b"")

    def confirmed(self, receiver: ClientSession, command: commands.Confirm) -> None:
        """Process CONFIRM of the receiver; unknown trackers are ignored."""
        message = next((one for one in receiver.unconfirmed if one.tracker == command.tracker), None)
        if message is not None:
            receiver.unconfirmed.remove({id(message)})
            self.report(message, command.code, command.reason)

    def report(self, message: MailboxMessage, code: int, reason: bytes) -> None:
        """Report the outcome of a message to its sender, if that is connected and requested it."""
        sender = message.sender
        if not message.tracker or not isinstance(sender, ClientSession) or not sender.connected:
            return
        if Feature.CONFIRM in sender.features:
            self._output.emit(sender, commands.encode(commands.Confirm(message.tracker, code, reason)))
