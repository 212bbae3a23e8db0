"""What tests of NATS servers need: a client that makes streams and reads them, and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import nats
import orjson
import trustme
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.support.nats.client_closing import close_abandoned, close_client
from tests.support.nats.event_loop_thread import EventLoopThread

T = TypeVar("T")
_PATIENCE = 60.0
#: Error of a server that still removes files of streams that were deleted.
_NO_STORE = 10049
#: Error of a cluster that is about to elect a leader.
_NO_LEADER = 10008


class FetchedMessage(NamedTuple):
    """What a stream holds."""

    sequence: int
    topic: str
    payload: bytes
    headers: dict[str, list[str]]


class Admin:
    """A second client, apart from the bridge under test: makes streams and reads them back. Synchronous."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url, self._options = url.split(","), options
        self._loop = EventLoopThread()
        self._client = Client()

    def __enter__(self) -> Self:
        client = self._client

        async def quiet(_: Exception) -> None:
            """Outages are what the tests make."""
            close_abandoned(client)

        often: dict[str, Any] = {"reconnect_time_wait": 0.1, "max_reconnect_attempts": -1}
        self._run(client.connect(self._url, error_cb=quiet, **often, **self._options))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(close_client(self._client))
        self._loop.stop()

    def _run(self, work: Coroutine[Any, Any, T], patience: float = _PATIENCE) -> T:
        return self._loop.run(work, patience, "the test's own NATS client")

    def api(self, what: str, body: dict[str, Any] | None = None, *, patience: float = _PATIENCE) -> dict[str, Any]:
        """One call of the JetStream API, repeated while nobody can answer; the answer, errors included."""

        async def ask() -> dict[str, Any]:
            until = asyncio.get_running_loop().time() + patience
            payload = b"" if body is None else orjson.dumps(body)
            while True:
                try:
                    reply = await self._client.request(f"$JS.API.{what}", payload, timeout=5)
                except (nats.errors.Error, OSError, TimeoutError):
                    if asyncio.get_running_loop().time() > until:
                        raise
                    await asyncio.sleep(0.05)
                    continue
                answer: dict[str, Any] = orjson.loads(reply.data)
                leaderless = answer.get("error", {}).get("err_code") == _NO_LEADER
                if not leaderless or asyncio.get_running_loop().time() > until:
                    return answer
                await asyncio.sleep(0.05)

        return self._run(ask())

    def publish(self, subject: str, payload: bytes = b"", **headers: str) -> dict[str, Any]:
        """One message; the acknowledgement. Underscores in the names of headers stand for hyphens."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        answer: dict[str, Any] = orjson.loads(
            self._run(self._client.request(subject, payload, timeout=_PATIENCE, headers=names)).data
        )
        return answer

    def create_stream(self, name: str, subjects: list[str], **config: Any) -> dict[str, Any]:
        """A stream on disk; times in nanoseconds, names of the options as in the API."""
        full = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": 1, **config}
        answer = self.api(f"STREAM.CREATE.{name}", full)
        deadline = time.monotonic() + _PATIENCE
        while answer.get("error", {}).get("err_code") == _NO_STORE and time.monotonic() < deadline:
            time.sleep(0.1)
            answer = self.api(f"STREAM.CREATE.{name}", full)
        assert "error" not in answer, answer["error"]
        return answer

    def update_stream(self, name: str, **config: Any) -> dict[str, Any]:
        old = self.info(name)["config"]
        answer = self.api(f"STREAM.UPDATE.{name}", {**old, **config})
        assert "error" not in answer, answer["error"]
        return answer

    def info(self, name: str) -> dict[str, Any]:
        answer = self.api(f"STREAM.INFO.{name}")
        assert "error" not in answer, answer["error"]
        return answer

    def messages(self, name: str) -> list[FetchedMessage]:
        """Everything a stream holds, in order."""
        count = int(self.info(name)["state"]["messages"])
        return self._run(self._messages(name, count), _PATIENCE + 10 * _reading(count))

    async def _messages(self, name: str, count: int) -> list[FetchedMessage]:
        client: Any = self._client
        client._process_headers = _all_headers  # the client's own keeps one value a name
        try:
            for _ in range(10):  # the server may have put the consumer on a node that is down
                with contextlib.suppress(TimeoutError, nats.errors.Error):
                    return await self._consume(name, count)
        finally:
            del client._process_headers
        raise AssertionError(f"stream {name!r} could not be read")

    async def _consume(self, name: str, count: int) -> list[FetchedMessage]:
        found: list[FetchedMessage] = []
        if not count:
            return found
        done = asyncio.get_running_loop().create_future()
        inbox = self._client.new_inbox()

        async def take(msg: Msg) -> None:
            headers: dict[str, list[str]] = msg.headers or {}  # type: ignore[assignment]
            if not msg.reply.startswith("$JS.ACK."):  # flow control, or a heartbeat, which may ask for it again
                (asked,) = headers.get("Nats-Consumer-Stalled", [msg.reply])
                if asked:
                    await self._client.publish(asked)
                return
            sequence = int(msg.reply.split(".")[5])
            found.append(FetchedMessage(sequence, msg.subject, msg.data, headers))
            if len(found) == count and not done.done():
                done.set_result(None)

        sub = await self._client.subscribe(inbox, cb=take, pending_bytes_limit=0, pending_msgs_limit=0)
        try:
            config = {"deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all", "num_replicas": 1}
            slowly = {"flow_control": True, "idle_heartbeat": 2_000_000_000}  # else the server drops who reads slowly
            body = orjson.dumps({"stream_name": name, "config": {**config, **slowly, "mem_storage": True}})
            await self._client.request(f"$JS.API.CONSUMER.CREATE.{name}", body, timeout=3)
            await asyncio.wait_for(done, _reading(count))
        finally:
            await sub.unsubscribe()
        return found

    @contextlib.contextmanager
    def hearing(self, subject: str) -> Iterator[list[bytes]]:
        """Payloads that a plain subscriber gets; all of them at the end."""
        heard: list[bytes] = []

        async def hear(message: Msg) -> None:
            heard.append(message.data)

        self._run(self._client.subscribe(subject, cb=hear))
        self._run(self._client.flush())
        yield heard
        self._run(self._client.flush())


def _reading(count: int) -> float:
    """Seconds that reading so many messages may take on a busy machine."""
    return 20.0 + count / 1_000


async def _all_headers(block: bytes | None) -> dict[str, list[str]] | None:
    headers: dict[str, list[str]] = {}
    for line in (block or b"").decode().split("\r\n")[1:-2]:
        name, _, value = line.partition(": ")
        headers.setdefault(name, []).append(value)
    return headers or None


@dataclass(frozen=True)
class Certificates:
    """PEM files: the CA and its key, the server's pair, and a CA that signed nothing here."""

    ca: Path
    ca_key: Path
    cert: Path
    key: Path
    other_ca: Path

    @property
    def config(self) -> str:
        """For the server."""
        return f'tls {{\n  cert_file: "{self.cert}"\n  key_file: "{self.key}"\n}}'

    @property
    def verifying(self) -> str:
        """For a server that lets nobody in without a certificate of the CA."""
        return self.config.replace("}", f'  ca_file: "{self.ca}"\n  verify: true\n}}')


def make_certificates(folder: Path) -> Certificates:
    """Certificates for 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, other_ca = trustme.CA(), trustme.CA()
    server = ca.issue_cert("127.0.0.1")

    def write(name: str, pem: trustme.Blob) -> Path:
        path = folder / name
        pem.write_to_path(path)
        return path

    return Certificates(
        write("ca.pem", ca.cert_pem),
        write("ca-key.pem", ca.private_key_pem),
        write("cert.pem", server.cert_chain_pems[0]),
        write("key.pem", server.private_key_pem),
        write("other.pem", other_ca.cert_pem),
    )
