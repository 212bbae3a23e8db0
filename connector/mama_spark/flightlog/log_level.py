"""Selects the events of flights that become rows of the flight log, by ``flightLogLevel``, and those that have the
payload and headers of their message, by ``flightLogPayload``. Pure."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contracts.message import MessageBatch
from .columns import FlightColumns
from .schema import ACKED, FAILED, PUBLISHED

_IS_FAILED = np.isin(np.arange(256), list(FAILED))  #: by event index


class Level(Enum):
    """``flightLogLevel``: which flight events become rows. Publisher and topic events are in at every level."""

    ALL = "all"  #: published and terminal events
    OUTCOMES = "outcomes"  #: terminal events
    ERRORS = "errors"  #: terminal events other than ``acked``, and those with a reason

    def rows_of(self, columns: FlightColumns) -> FlightColumns:
        """The events among ``columns`` that become rows."""
        if self is Level.ALL:
            return columns
        codes = columns.codes()
        if self is Level.ERRORS:
            keep = (codes != PUBLISHED) & (codes != ACKED)
            keep[list(columns.reasons)] = True  # a doubled id is an error, however its flight ended
        else:  # where nothing is acknowledged, `published` is the terminal event
            keep = (codes != PUBLISHED) | columns.without_acknowledgement()
        return columns if keep.all() else columns.take(np.flatnonzero(keep))


def kept(batch: MessageBatch, event: npt.NDArray[np.uint8], which: str) -> tuple[pa.Array | None, pa.Array | None]:
    """Payloads and headers that the log keeps; None: of no message.

    :param event: one a message
    :param which: ``none``, ``failed`` or ``all``
    """
    if which == "none":
        return None, None
    if which == "all":
        return batch.payloads, batch.headers
    failed = _IS_FAILED[event]
    if not failed.any():
        return None, None
    index = pa.array(np.arange(len(event)), mask=~failed)
    return batch.payloads.take(index), None if batch.headers is None else batch.headers.take(index)
