"""The contract of middlewares whose recorders write records of their own into a log: how these become columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from .message import Int64s


class RowDecoder(Protocol):
    """Makes columns of records. For one thread.

    :ivar bad: records so far that could not be read
    """

    bad: int

    def columns(
        self, payloads: pa.Array, topics: pa.Array, sequences: Int64s, faults: Mapping[int, str]
    ) -> dict[str, pa.Array]:
        """The columns by name.

        :param topics: of the records in the log
        :param faults: record -> why it cannot be read, where that is known
        :raises MamaError: a record cannot be read, and the decoder is a strict one
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How records become columns. Parts are ``module:attribute`` and imported when they are needed: a planner of Spark
    often asks for the type alone.

    :ivar column: name of the one that says what a record is
    :ivar type: of that column
    :ivar decoder: ``(column_type, fields, strict) -> RowDecoder``: the type is None where the column is not wanted;
        with ``strict`` it raises where a record cannot be read, instead of saying so in its row
    :ivar packed: a message may hold several records
    :ivar field_columns: ``(o: SubscribeOptions) -> pa.Schema``: columns for fields of records that the options name;
        None: there are no columns of fields
    :ivar fields: ``(columns: pa.Schema, o) -> Sequence``: what the decoder needs to know of such columns; it is pickled
    """

    column: str
    type: pa.StructType
    decoder: str
    packed: bool = False
    field_columns: str | None = None
    fields: str | None = None
