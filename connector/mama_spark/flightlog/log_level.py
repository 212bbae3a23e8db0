"""Selects the events of flights that become rows of the flight log, by ``flightLogLevel``. Pure."""

from __future__ import annotations

from enum import Enum

import numpy as np

from .columns import FlightColumns
from .schema import ACKED, PUBLISHED


class Level(Enum):
    """``flightLogLevel``: which flight events become rows. Publisher and topic events are in at every level."""

    ALL = "all"  #: published and terminal events
    OUTCOMES = "outcomes"  #: terminal events
    ERRORS = "errors"  #: terminal events other than ``acked``

    @property
    def has_all_published(self) -> bool:
        """Whether ``published`` is a row of every flight; else only where nothing is acknowledged, if at all."""
        return self is Level.ALL

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
