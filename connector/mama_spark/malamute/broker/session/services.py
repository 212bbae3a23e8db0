"""Offers of services (ML-24), and which worker gets the next request. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mama_spark.malamute.protocol.patterns import Pattern


@dataclass(frozen=True, slots=True)
class _Offer:
    client: Hashable
    pattern: Pattern


class Services:
    def __init__(self) -> None:
        self._offers: dict[bytes, list[_Offer]] = {}

    def offer(self, client: Hashable, service: bytes, pattern: Pattern) -> None:
        """The client must not have made the offer before."""
        self._offers.setdefault(service, []).append(_Offer(client, pattern))

    def choose(self, service: bytes, subject: bytes) -> Hashable | None:
        """The client of the first offer that matches, which moves to the end (round robin); None if there is none."""
        offers = self._offers.get(service, [])
        for i, offer in enumerate(offers):
            if offer.pattern.search(subject):
                offers.append(offers.pop(i))
                return offer.client
        return None

    def withdraw(self, client: Hashable) -> None:
        for service, offers in list(self._offers.items()):
            offers[:] = [o for o in offers if o.client is not client]
            if not offers:
                del self._offers[service]
