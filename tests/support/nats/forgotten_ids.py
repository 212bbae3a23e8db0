"""Waits until a server has forgotten the ids of messages."""

from __future__ import annotations

from uuid import uuid4

from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin

#: Duplicate window in nanoseconds, the shortest that a server takes.
WINDOW = 100_000_000


def forget_ids(admin: Admin, window: int = WINDOW) -> None:
    """Wait until the server has forgotten an id that it got now, and so all that it got before in such a window."""
    admin.create_stream("FORGETS", ["forgets"], duplicate_window=window)
    forget_ids_as(admin, "forgets")
    admin.api("STREAM.DELETE.FORGETS")


def forget_ids_as(admin: Admin, subject: str) -> None:
    """The same by a message of a stream that is there: a cluster may make another one at a server that is down."""
    probe = uuid4().hex
    admin.publish(subject, Nats_Msg_Id=probe)
    eventually(lambda: "duplicate" not in admin.publish(subject, Nats_Msg_Id=probe), "an id is forgotten")
