"""Every private name of nats-py and asyncio that this package uses; no other module touches one.

Readers use its connection. The fast path puts a parser of its own before the client's, and reads the socket without the
copies of :class:`asyncio.StreamReader`: there are no public calls for that.
:func:`missing_names` compares what is needed with the installed version. Where a name of the fast path is missing,
:func:`fast_path_usable` says so in the log, and connections use public calls only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import inspect
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.js.client import JetStreamContext

from mama_spark.contracts.errors import ConfigError

from ..settings import DEFAULT_API_PREFIX

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
#: Versions of nats-py that the private names were tested with: from, below. ``pyproject.toml`` requires the same.
VERSIONS = ((2, 16), (3, 0))

FAST_PATH = "the fast path"
RAW_READS = "reads without copies"
TLS = "TLS before credentials are sent"
RENEWAL = "reading renewed credentials"
QUIET = "no warnings of asyncio about TLS"
CLEANUP = "closing what a failed attempt to connect leaves open"
ATTACH = "publishing through a JetStream context of the caller"


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A private name of nats-py or asyncio.

    :ivar needed_for: the feature that needs it
    :ivar is_there: whether the client has it, of the expected kind
    """

    name: str
    needed_for: str
    is_there: Callable[[Client], bool]


def _set_by(kind: type) -> frozenset[str]:
    """Names that the constructor of a class uses, attributes included."""
    code = getattr(kind.__init__, "__code__", None)  # type: ignore[misc]
    return frozenset(() if code is None else code.co_names)


def _method(name: str, needed_for: str) -> PrivateName:
    return PrivateName(
        f"Client.{name}", needed_for, lambda client: inspect.iscoroutinefunction(getattr(client, name, None))
    )


def _callback(name: str) -> PrivateName:
    return PrivateName(f"Client.{name}", ATTACH, lambda client: hasattr(client, name))


#: All of them.
PRIVATE_NAMES = (
    PrivateName(
        "Client._ps",
        FAST_PATH,
        lambda client: (
            inspect.iscoroutinefunction(getattr(getattr(client, "_ps", None), "parse", None))
            and callable(getattr(client._ps, "reset", None))
        ),
    ),
    PrivateName("Client._transport", FAST_PATH, lambda client: hasattr(client, "_transport")),
    PrivateName("Subscription._id", FAST_PATH, lambda _: "_id" in _set_by(Subscription)),
    PrivateName("TcpTransport._io_reader", RAW_READS, lambda _: "_io_reader" in _set_by(TcpTransport)),
    PrivateName("TcpTransport._io_writer", RAW_READS, lambda _: "_io_writer" in _set_by(TcpTransport)),
    PrivateName("StreamReader._buffer", RAW_READS, lambda _: "_buffer" in _set_by(asyncio.StreamReader)),
    PrivateName("Client._process_info", TLS, lambda _: inspect.iscoroutinefunction(_process_info())),
    _method("_process_err", RENEWAL),
    PrivateName("Client._connect_command", QUIET, lambda client: callable(getattr(client, "_connect_command", None))),
    _method("_attempt_reconnect", CLEANUP),
    PrivateName("JetStreamContext._nc", ATTACH, lambda _: "_nc" in _set_by(JetStreamContext)),
    PrivateName("JetStreamContext._prefix", ATTACH, lambda _: "_prefix" in _set_by(JetStreamContext)),
    PrivateName("Client._reading_task", ATTACH, lambda client: hasattr(client, "_reading_task")),
    *map(_callback, ("_error_cb", "_disconnected_cb", "_reconnected_cb", "_closed_cb")),
)


def _process_info() -> object:
    return getattr(Client, "_process_info", None)


def installed_version() -> str:
    """Version of nats-py; empty if it is not installed as a distribution."""
    try:
        return importlib.metadata.version("nats-py")
    except importlib.metadata.PackageNotFoundError:
        return ""


def missing_names(client: Client) -> dict[str, str]:
    """Private names that the installed nats-py lacks, or has of another kind, each with the feature that needs it."""
    return {name.name: name.needed_for for name in PRIVATE_NAMES if not name.is_there(client)}


def version_tried(version: str) -> bool:
    """Whether the private names were tested with this version of nats-py."""
    try:
        major, minor = map(int, version.split(".")[:2])
    except ValueError:
        return False
    return VERSIONS[0] <= (major, minor) < VERSIONS[1]


def fast_path_usable(client: Client) -> bool:
    """Whether the fast path can be used with this client. If not, or if reads must be copied, a warning says why."""
    version, missing = installed_version(), missing_names(client)
    reasons = [f"{name} is not as expected" for name, need in missing.items() if need in (FAST_PATH, RAW_READS)]
    if not version_tried(version):
        reasons.insert(0, "this version was not tried")
    if reasons:
        _warn("; ".join(reasons), version)
    return version_tried(version) and FAST_PATH not in missing.values()


@cache
def _warn(why: str, version: str) -> None:
    """Log each reason once a process."""
    low, high = (".".join(map(str, v)) for v in VERSIONS)
    _LOG.warning(
        "The fast path of the bridge to NATS is off, or slower: nats-py %s is installed, %s up to but without %s were "
        "tried (%s). Messages go by public calls, which is several times slower; install a version of nats-py that was "
        "tried.",
        *(version or "of an unknown version", low, high, why),
    )


# --- the fast path ------------------------------------------------------------------------------------------------


def replace_parser(client: Client, make: Callable[[Any], T]) -> T:
    """Replace the client's parser.

    :param make: given the client's parser, returns the new one
    """
    anything: Any = client
    parser = make(anything._ps)
    anything._ps = parser
    return parser


def transport_of(client: Client) -> Any:
    """The transport of the client; None before it connects."""
    return getattr(client, "_transport", None)


def subscription_id(subscription: Subscription) -> int | None:
    """Id of a subscription, which its deliveries carry; None if it cannot be read."""
    found = getattr(subscription, "_id", None)
    return found if isinstance(found, int) else None


def stream_of(transport: Any) -> tuple[asyncio.StreamReader | None, asyncio.Transport | None]:
    """Reader and asyncio transport of the connection that a transport of nats-py has now."""
    writer = getattr(transport, "_io_writer", None)
    return getattr(transport, "_io_reader", None), None if writer is None else writer.transport


def is_tcp(transport: object) -> bool:
    """Whether it is a plain or TLS connection, not a websocket."""
    return isinstance(transport, TcpTransport)


def unread(reader: asyncio.StreamReader) -> bytearray | None:
    """Bytes that a reader has received and that were not taken; None if they cannot be seen."""
    found = getattr(reader, "_buffer", None)
    return found if isinstance(found, bytearray) else None


# --- contexts of the caller ---------------------------------------------------------------------------------------


def client_of(context: Any) -> Any:
    """The client of a JetStream context; None if it cannot be found."""
    return getattr(context, "_nc", None)


def api_prefix_of(context: Any) -> str:
    """Prefix of the subjects of a JetStream context's requests, with its trailing dot."""
    prefix = getattr(context, "_prefix", None)
    return f"{prefix}." if isinstance(prefix, str) else DEFAULT_API_PREFIX


def loop_of(context: Any) -> asyncio.AbstractEventLoop:
    """The loop that a context's client reads on, or else the running one.

    :raises ConfigError: neither can be found
    """
    reading = getattr(client_of(context), "_reading_task", None)
    if isinstance(reading, asyncio.Task):
        return reading.get_loop()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("the event loop of this JetStream context cannot be found: give it as loop=") from None


Callback = Callable[..., Coroutine[Any, Any, None]]


def add_callbacks(
    client: Any, error: Callback, disconnected: Callback, reconnected: Callback, closed: Callback
) -> None:
    """Call these in addition to the callbacks that the client's owner has set."""

    def both(theirs: Callback | None, ours: Callback) -> Callback:
        async def call(*args: Any) -> None:
            await ours(*args)
            if theirs is not None:
                await theirs(*args)

        return call

    client._disconnected_cb = both(client._disconnected_cb, disconnected)
    client._reconnected_cb = both(client._reconnected_cb, reconnected)
    client._closed_cb = both(client._closed_cb, closed)
    client._error_cb = both(client._error_cb, error)


# --- the client ---------------------------------------------------------------------------------------------------


class NatsClient(Client):
    """A client that connects again when its login has expired or was revoked, and reads its credentials again; nats-py
    itself would close for good. When a server closes its connection, asyncio writes no warning."""

    def _connect_command(self) -> bytes:
        _, transport = stream_of(transport_of(self))
        if transport is not None and transport.get_extra_info("sslcontext") is not None:
            protocol: Any = transport.get_protocol()
            received = protocol.eof_received
            # nats-py's protocol answers that it stays half open, of which asyncio warns: TLS cannot do that
            protocol.eof_received = lambda: received() and None
        try:
            return super()._connect_command()
        except (nats.errors.Error, OSError):
            raise
        except Exception as e:  # a file that is being written: nats-py would end its task, and connect no more
            raise nats.errors.Error(f"the credentials cannot be read: {e}") from e

    async def _process_err(self, err_msg: str) -> None:
        if "authentication expired" in err_msg or "authentication revoked" in err_msg:
            await self.force_reconnect()
        else:
            await super()._process_err(err_msg)


# --- TLS ----------------------------------------------------------------------------------------------------------


class TlsNotOffered(nats.errors.SecureConnWantedError):
    """TLS was requested and the server does not offer it. Nothing was sent."""

    def __str__(self) -> str:
        return (
            "TLS was asked for (tls:// or a tls option) and this server does not offer it: nothing was sent, no "
            "credentials either. Configure TLS in the server, or ask for none"
        )


class TlsClient(NatsClient):
    """A client that does not use a server without TLS.

    nats-py itself upgrades only where the server's INFO says ``tls_required``, and sends its credentials in plain to
    all others. Holds for each reconnect and for servers that a cluster announces, too.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not self.options["tls_handshake_first"]:  # INFO, before CONNECT
            if not (info.get("tls_required") or info.get("tls_available")):
                raise TlsNotOffered
            info["tls_required"] = True  # else it upgrades only if the server requires it
        await super()._process_info(info, initial_connection)


def new_client(*, tls: bool) -> Client:
    """A client that is not connected yet.

    :param tls: it sends credentials over TLS only
    :raises ConfigError: this version of nats-py does not allow to ensure that
    """
    if not tls:
        return NatsClient()
    client = TlsClient()
    if TLS in missing_names(client).values():
        low, high = (".".join(map(str, v)) for v in VERSIONS)
        raise ConfigError(
            f"nats-py {installed_version()} has no Client._process_info, so it might send credentials without TLS: "
            f"install nats-py>={low},<{high}"
        )
    return client


# --- what a client leaves behind when it connects -----------------------------------------------------------------


def close_abandoned(client: Client) -> None:
    """Close the transport of a failed connection attempt. The client opens another one and forgets this one, which
    would stay open until it is garbage-collected."""
    transport = transport_of(client)
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
