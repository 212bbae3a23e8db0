"""Closes clients of nats-py, with what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from nats.aio.client import Client


def close_abandoned(client: Client) -> None:
    """Close the transport of a failed connection attempt. The client opens another one and forgets this one, which
    would stay open until it is garbage-collected."""
    transport: Any = getattr(client, "_transport", None)
    if transport is not None and not client.is_connected:
        with contextlib.suppress(Exception):
            transport.close()


async def close_client(client: Client) -> None:
    """Close a client and its reconnecting tasks; takes some seconds at most, never raises."""
    # in its own task: a task that the client cancels may cancel the client, which must not end this call
    closing = asyncio.ensure_future(client.close())
    closing.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not (await asyncio.wait({closing}, timeout=2))[0]:
        closing.cancel()
    while cancelled := cancel_reconnects(client):
        await asyncio.wait(cancelled, timeout=0.1)
    close_abandoned(client)  # what a reconnecting task opened before it was cancelled


def cancel_reconnects(client: Client) -> set[asyncio.Task[Any]]:
    """Cancel all tasks that connect this client again, except the one that calls; on the client's loop.

    The client cancels such a task once, when it is closed or begins another, and forgets it. An attempt to connect that
    fails at that moment swallows the cancellation (``asyncio.wait_for`` before Python 3.12), and the task goes on as
    long as the process, at ports that may be somebody else's by then.

    :returns: the cancelled tasks; they may have to be cancelled again
    """
    cancelled = set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_code.co_name == "_attempt_reconnect" and frame.f_locals.get("self") is client:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieves its exception
            cancelled.add(task)
    return cancelled
