"""What was not sent is no request, and a subject need not be text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mama_spark.contracts.errors import PermissionDenied, Unavailable
from mama_spark.nats.connection.requests import Denials
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.publish.requests import NatsRequests


class Connection:
    """That is up or down."""

    up = True

    def __init__(self) -> None:
        self.denials = Denials()

    def subscribe(self, subject: str, call: Callable[[Frame], None], _: float) -> int:
        self.call = call
        return 1

    def publish(self, *_: Any) -> None:
        if not self.up:
            raise Unavailable("not connected")

    def drive(self, timeout: float) -> None: ...


def test_a_denial_is_that_of_the_request_that_was_sent() -> None:
    connection: Any = Connection()
    requests = NatsRequests(connection, 1.0)
    requests.request("a", b"", 1)
    connection.up = False
    with pytest.raises(Unavailable):
        requests.request("b", b"", 2)
    connection.up = True
    requests.request("b", b"", 3)
    assert connection.denials.tell("publish", "b")
    (denied,) = requests.received()
    assert (denied.inbox, type(denied.error)) == (3, PermissionDenied)


def test_who_asks_may_want_the_answer_anywhere() -> None:
    connection: Any = Connection()
    requests = NatsRequests(connection, 1.0)
    requests.listen("a")
    for reply in (b"_INBOX.\xff", b"_INBOX.b", None):
        connection.call(Frame("MSG", 0, b"a", reply=reply, payload=b"x"))
    assert [one.reply_to for one in requests.received()] == ["_INBOX.\ufffd", "_INBOX.b", None]
