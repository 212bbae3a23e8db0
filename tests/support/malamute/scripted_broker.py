"""A broker that does what the test says."""

from __future__ import annotations

import zmq

from tests.support.malamute.malamute_clients import PATIENCE


class Scripted:
    """A ROUTER that does what the test says."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.set_hwm(10)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"mlp://127.0.0.1:{port}"

    def get(self) -> tuple[bytes, list[bytes]]:
        assert self.router.poll(int(PATIENCE * 1000)), "nothing came"
        identity, *frames = self.router.recv_multipart()
        return identity, frames

    def put(self, identity: bytes, *frames: bytes) -> None:
        self.router.send_multipart([identity, *frames])

    def close(self) -> None:
        self.router.close(0)
        self.context.term()
