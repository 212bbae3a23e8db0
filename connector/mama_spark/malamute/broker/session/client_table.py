"""The connected clients of a broker, by routing id and by address. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .client_session import ClientSession


class ClientTable:
    """:ivar by_identity: by routing id, longest silent first
    :ivar by_address: those that have an address
    :ivar plain: number of those that announced no extensions
    """

    def __init__(self) -> None:
        self.by_identity: OrderedDict[bytes, ClientSession] = OrderedDict()
        self.by_address: dict[bytes, ClientSession] = {}
        self.plain = 0

    def __len__(self) -> int:
        return len(self.by_identity)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self.by_identity.values())

    def add(self, client: ClientSession) -> None:
        """Add a client; its address must be free."""
        self.by_identity[client.identity] = client
        self.plain += client.plain
        if client.address:
            self.by_address[client.address] = client

    def remove(self, client: ClientSession) -> None:
        if self.by_identity.pop(client.identity, None) is not None:
            self.plain -= client.plain
        if self.by_address.get(client.address) is client:
            del self.by_address[client.address]

    def last_heard(self) -> ClientSession | None:
        """The client that was heard last."""
        return next(reversed(self.by_identity.values()), None)

    def longest_silent(self) -> ClientSession | None:
        return next(iter(self.by_identity.values()), None)

    def excuse_silence(self, seconds: float) -> None:
        """Exclude ``seconds`` in which the sockets were not read from the silence of all clients."""
        for client in self:
            client.last_heard += seconds
