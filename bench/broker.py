"""The broker of the benchmark: one server with file storage, one stream with one replica."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Self

import nats
from mama_spark.nats.server.nats_server import NatsServer

STREAM, SUBJECTS = "BENCH", "b.>"


class Broker:
    def __init__(self, folder: Path) -> None:
        self._server = NatsServer(folder, jetstream="max_file: 60GB")

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def pid(self) -> int:
        return self._server.pid

    def __enter__(self) -> Self:
        self._server.start()
        self._make()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _make(self) -> None:
        self.api(f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[SUBJECTS], storage="file", allow_batched=True)

    def make_again(self) -> None:
        """A stream whose sequences begin with 1. The restart lets the server finish with the files of the old one."""
        self.api(f"STREAM.DELETE.{STREAM}")
        self.restart()
        self._make()

    def restart(self) -> None:
        """Forget the ids of earlier runs: the server keeps each for two minutes, and purging does not free them."""
        self._server.stop()
        self._server.start()

    def purge(self) -> None:
        self.api(f"STREAM.PURGE.{STREAM}")

    def count(self) -> int:
        return int(self.api(f"STREAM.INFO.{STREAM}")["state"]["messages"])

    def stored_bytes(self) -> int:
        return int(self.api(f"STREAM.INFO.{STREAM}")["state"]["bytes"])

    def api(self, subject: str, **request: Any) -> dict[str, Any]:
        """The reply of JetStream's API.

        :raises RuntimeError: it is an error
        """

        async def ask() -> dict[str, Any]:
            connection = await nats.connect(self.url)
            try:
                answer = await connection.request(f"$JS.API.{subject}", json.dumps(request).encode(), timeout=60)
            finally:
                await connection.close()
            reply: dict[str, Any] = json.loads(answer.data)
            if "error" in reply:
                raise RuntimeError(f"{subject}: {reply['error']}")
            return reply

        return asyncio.run(ask())
