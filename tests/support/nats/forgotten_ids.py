"""Waits until a server has forgotten the ids of messages."""

from __future__ import annotations

from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin

#: Duplicate window in nanoseconds, the shortest that a server takes.
WINDOW = 100_000_000


def forget_ids(admin: Admin) -> None:
    """Wait until the server has forgotten an id that it got now, and so all that it got before in such a window."""
    admin.create_stream("FORGETS", ["forgets"], duplicate_window=WINDOW)
    admin.publish("forgets", Nats_Msg_Id="probe")
    eventually(lambda: "duplicate" not in admin.publish("forgets", Nats_Msg_Id="probe"), "an id is forgotten")
    admin.api("STREAM.DELETE.FORGETS")
