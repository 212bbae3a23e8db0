"""What nats-py leaves behind when it connects: transports that it forgets, and tasks that go on connecting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from nats.aio.client import Client


def close_abandoned(client: Client) -> None:
    """After an error: close what the client opened for a connection that did not come about. It opens another and
    forgets this one, which would stay open until it is collected."""
    transport: Any = getattr(client, "_transport", None)
    if transport is not None and not client.is_connected:
        with contextlib.suppress(Exception):
            transport.close()


def stop_reconnecting(client: Client) -> set[asyncio.Task[Any]]:
    """Tell all tasks that connect this client again to end, but for the one that asks; on the client's loop.

    The client tells such a task once, when it is closed or begins another, and forgets it. An attempt to connect that
    fails at that moment swallows what it was told (``asyncio.wait_for`` before Python 3.12), and the task goes on as
    long as the process, at ports that may be somebody else's by then.

    :returns: who was told, and may have to be told again
    """
    told = set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_code.co_name == "_attempt_reconnect" and frame.f_locals.get("self") is client:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks
            told.add(task)
    return told
