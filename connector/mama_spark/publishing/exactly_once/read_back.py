"""Reads back the stored rows of a batch, and checks that none was removed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from mama_spark.contracts.batch_ledger import BatchLedger
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Continuity, continuity

from .matching import IdReader, StoredRows
from .protocol import Attempt

logger = logging.getLogger("mama_spark")
T = TypeVar("T")


class DataRemoved(ConfigError):
    """Messages were removed from the stream before they were read back."""


class Ask(Protocol):
    """Calls ``ask``, again and again in an outage if outages are waited for."""

    def __call__(self, ask: Callable[[], T], /) -> T: ...


class ReadBack:
    """Reads back rows of a batch; ``publish_anyway``: publish rows that cannot be read back, instead of an error."""

    def __init__(self, ledger: BatchLedger, me: Attempt, reader: IdReader, publish_anyway: bool, ask: Ask) -> None:
        self._ledger, self._me, self._reader, self._publish_anyway = ledger, me, reader, publish_anyway
        self._ask = ask

    def rows(self, name: str, identity: str, after: int, up_to: int, prefix: bytes) -> StoredRows:
        """Stored rows of the batch, or of this partition of it, whose ids begin with ``prefix``.

        :param identity: identity of the stream when the batch began
        :raises DataRemoved: messages may be missing
        """
        began, reader = time.monotonic(), self._reader
        rows, read = StoredRows(after, len(self._me.prefix)), 0
        wanted = prefix if reader.prefixed else b""
        for some in self._ledger.read(name, after, up_to, wanted, records=reader.unpack is not None):
            read += some.read
            reader.add(rows, some)
        rows.finish()
        self._check_complete(name, identity, after, up_to)
        logger.info(
            "partition %d, stream %s: %s rows of batch %d are stored already (%s messages read back in %.1f s, from "
            "sequence %d to %d)",
            self._me.partition, name, f"{len(rows):,}", self._me.batch, f"{read:,}", time.monotonic() - began,
            after + 1, up_to,
        )  # fmt: skip
        return rows

    def _check_complete(self, name: str, identity: str, after: int, up_to: int) -> None:
        bounds = self._ask(lambda: self._ledger.bounds(name))
        state = continuity(up_to + 1, identity, bounds)
        if state is Continuity.RECREATED:
            self.removed(f"stream {name!r} was deleted and made again since batch {self._me.batch} began")
            return
        if state is Continuity.SHORTER:
            self.removed(
                f"stream {name!r} ends at sequence {bounds.last}, and went on to {up_to} when this run of batch "
                f"{self._me.batch} began (was it restored from an older copy?)"
            )
            return
        missing = self._ask(lambda: self._ledger.missing(name, after, up_to))
        if missing:
            (first, last), n = missing[0], sum(high - low + 1 for low, high in missing)
            self.removed(
                f"{n:,} messages of stream {name!r} that were stored since batch {self._me.batch} began are removed "
                f"(sequences {first} to {last}{' and others' if len(missing) > 1 else ''})"
            )

    def removed(self, what: str) -> None:
        """Report removed messages that may be of the batch: DataRemoved, or a warning with ``publish_anyway``."""
        text = f"{what}, so what is stored of it cannot be told from what was never stored"
        if not self._publish_anyway:
            raise DataRemoved(
                f"{text}. Option onRetention=publish publishes its rows all the same, of which some may then be stored "
                "twice"
            )
        logger.warning("%s; publishing all that is not found (onRetention=publish)", text)
