"""Casts typed rows to the schema that a reader asks for: columns by name, without loss of values."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from .format import canonical_type


class SchemaCast:
    """A :data:`~.unpacker.RowTransform`. Packs with columns of the same types share a plan.

    :param wanted: columns of the result; those that a pack lacks are null, its other columns are dropped
    """

    def __init__(self, wanted: pa.Schema) -> None:
        self._wanted = wanted
        self._plan = lru_cache(64)(self._find)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """:raises ValueError: a column has a type that cannot become the wanted one, or a value that does not fit"""
        columns = []
        for field, at in zip(self._wanted, self._plan(rows.schema), strict=True):
            if at is None:
                columns.append(pa.nulls(rows.num_rows, field.type))
                continue
            column = rows.column(at)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as e:
                raise ValueError(f"column {field.name!r} as {field.type}: {e}") from e
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _find(self, schema: pa.Schema) -> tuple[int | None, ...]:
        places = []
        for field in self._wanted:
            at = schema.get_field_index(field.name)
            if at >= 0 and not is_castable(schema.field(at).type, field.type):
                raise ValueError(f"column {field.name!r} is {schema.field(at).type}, {field.type} is wanted")
            places.append(at if at >= 0 else None)
        return tuple(places)


def is_castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be cast to the other; a single number may still be too large."""
    given, wanted = canonical_type(given), canonical_type(wanted)
    if given == wanted:
        return True
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return is_castable(given.value_type, wanted.value_type)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return is_castable(given.key_type, wanted.key_type) and is_castable(given.item_type, wanted.item_type)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = [f.name for f in given] == [f.name for f in wanted]
        return names and all(is_castable(a.type, b.type) for a, b in zip(given, wanted, strict=True))
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return bool((given.tz is None) == (wanted.tz is None))
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return any(all(kind(t) for t in (given, wanted)) for kind in _SAME_KIND) or (
        pa.types.is_integer(given) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted))
    )


#: Types of one kind, which differ in width or unit only.
_SAME_KIND = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)
