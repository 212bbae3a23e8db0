"""TLS where it was asked for, and what nats-py leaves behind when it connects: transports that it forgets, and tasks
that go on connecting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import nats.errors
from nats.aio.client import Client


class TlsNotOffered(nats.errors.SecureConnWantedError):
    """TLS was asked for and the server has none. Nothing was sent."""

    def __str__(self) -> str:
        return (
            "TLS was asked for (tls:// or a tls option) and this server does not offer it: nothing was sent, no "
            "credentials either. Configure TLS in the server, or ask for none"
        )


class TlsClient(Client):
    """A client that uses TLS with every server, or does not use the server.

    nats-py itself upgrades only where the server's INFO says ``tls_required``, and sends its credentials in plain to
    all others. Holds for each reconnect and for servers that a cluster tells of, too.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not self.options["tls_handshake_first"]:  # the first line, before CONNECT
            if not (info.get("tls_required") or info.get("tls_available")):
                raise TlsNotOffered
            info["tls_required"] = True  # else it upgrades only where all clients must
        await super()._process_info(info, initial_connection)


def close_abandoned(client: Client) -> None:
    """After an error: close what the client opened for a connection that did not come about. It opens another and
    forgets this one, which would stay open until it is collected."""
    transport: Any = getattr(client, "_transport", None)
    if transport is not None and not client.is_connected:
        with contextlib.suppress(Exception):
            transport.close()


async def close_client(client: Client) -> None:
    """Close it for good, with what still connects it; at most some seconds, never raises."""
    # a task of its own: the client may be cancelled by what it cancels itself, and that is not our end
    closing = asyncio.ensure_future(client.close())
    closing.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not (await asyncio.wait({closing}, timeout=2))[0]:
        closing.cancel()
    while told := stop_reconnecting(client):
        await asyncio.wait(told, timeout=0.1)
    close_abandoned(client)  # what a reconnecting task opened before it ended


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
