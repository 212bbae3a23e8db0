"""The connected clients of a broker, by routing id and by address. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .client_session import ClientSession


class ClientTable:
    """:ivar by_identity: by routing id, longest silent first
    :ivar by_address: those that have an address
    """

    def __init__(self) -> None:
        self.by_identity: OrderedDict[bytes, ClientSession] = OrderedDict()
        self.by_address: dict[bytes, ClientSession] = {}

    def __len__(self) -> int:
        return len(self.by_identity)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self.by_identity.values())

    def add(self, client: ClientSession) -> None:
        """Add a client; its address must be free."""
        self.by_identity[client.identity] = client
        if client.address:
            self.by_address[client.address] = client

    def remove(self, client: ClientSession) -> None:
        self.by_identity.pop(client.identity, None)
        if self.by_address.get(client.address) is client:
            del self.by_address[client.address]

    def longest_silent(self) -> ClientSession | None:
        return next(iter(self.by_identity.values()), None)

    def excuse_silence(self, seconds: float) -> None:
        """Exclude ``seconds`` in which the sockets were not read from the silence of all clients."""
        for client in self:
            client.last_heard += seconds
