"""Casts typed rows to the schema that a reader asks for: columns by name, without loss of values. Pure.

Names and missing columns are treated as Spark's reader of Parquet treats them: case does not count where it is not
needed, a column that a pack lacks is null, other columns of the pack are left out; so with the fields of structs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from ..options.values import nearest
from .format import canonical_type

_SHOWN = 400


class SchemaCast:
    """A :data:`~.unpacker.RowTransform`. Packs with columns of the same types share a plan.

    :param type_name: name of the type in error texts
    :ivar misspelled: wanted columns that packs lack, and the column of such a pack that has nearly the same name
    """

    def __init__(self, wanted: pa.Schema, type_name: Callable[[pa.DataType], str] = str) -> None:
        self._wanted, self._type_name = wanted, type_name
        self._plan = lru_cache(64)(self._find)
        self.misspelled: dict[str, str] = {}

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted columns that the rows have, at least one.

        :raises ValueError: there is none, a column has a type that cannot become the wanted one, or a value does not
            fit; shows both schemas
        """
        plan = self._plan(rows.schema)
        if isinstance(plan, str):
            raise ValueError(plan)
        columns, fields = [], []
        for field, at in plan:
            column = rows.column(at)
            try:
                same = column.type == field.type
                columns.append(column if same else pa.array(_Named(column, field.type)).cast(field.type))
            except pa.ArrowException as e:
                why = f"column {field.name!r} as {self._type_name(field.type)}: {str(e).splitlines()[0]}"
                raise ValueError(self._mismatch(rows.schema, why)) from e
            fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _find(self, schema: pa.Schema) -> tuple[tuple[pa.Field, int], ...] | str:
        """The wanted columns that are there, and where; or why they cannot be read."""
        found = []
        for field in self._wanted:
            alike = _places(schema, field.name)
            if len(alike) > 1:
                return self._mismatch(schema, f"it has several columns {field.name!r}, which differ in case only")
            if not alike:
                continue
            (at,) = alike
            if not is_castable(given := schema.field(at).type, field.type):
                why = f"column {field.name!r} is {self._type_name(given)}, {self._type_name(field.type)} is wanted"
                return self._mismatch(schema, why)
            found.append((field, at))
        there = {schema.field(at).name for _, at in found}
        hints = []
        for field in self._wanted:
            if not any(field is one for one, _ in found) and (hint := nearest(field.name, set(schema.names) - there)):
                self.misspelled[field.name] = hint.removeprefix("; ")
                hints.append(f"{field.name!r}: {hint.removeprefix('; ')}")
        if not found:
            return self._mismatch(schema, "; ".join(["it has none of the wanted columns", *hints]))
        return tuple(found)

    def _mismatch(self, schema: pa.Schema, why: str) -> str:
        return f"{why}; the message has ({self._shown(schema)}), .schema() has ({self._shown(self._wanted)})"

    def _shown(self, schema: pa.Schema) -> str:
        text = ", ".join(f"{f.name} {self._type_name(f.type)}" for f in schema)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _places(fields: pa.Schema | pa.StructType, name: str) -> list[int]:
    """The column or field of this name, or else those that differ in case only."""
    if (at := fields.get_field_index(name)) >= 0:
        return [int(at)]
    return [i for i, other in enumerate(fields) if other.name.lower() == name.lower()]


class _Named(NamedTuple):
    """A column with the names that ``wanted`` has for fields of structs, since case counts for Arrow's cast."""

    column: pa.Array
    wanted: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return _named(self.column.type, self.wanted).__arrow_c_schema__(), self.column.__arrow_c_array__()[1]


def _named(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        types, fields = {f.name: f.type for f in wanted}, list(given)
        for name, kind in types.items():
            for at in _places(given, name):
                if fields[at].name == name or fields[at].name not in types:
                    fields[at] = fields[at].with_name(name).with_type(_named(fields[at].type, kind))
        return pa.struct(fields)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        key, item = given.key_field, given.item_field.with_type(_named(given.item_type, wanted.item_type))
        return pa.map_(key.with_type(_named(key.type, wanted.key_type)), item, given.keys_sorted)
    for is_list, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_list(given) and pa.types.is_list(wanted):
            return make(given.value_field.with_type(_named(given.value_type, wanted.value_type)))
    return given


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
        shared = [(at, f.type) for f in wanted if (at := _places(given, f.name))]
        return bool(shared) and all(len(at) == 1 and is_castable(given.field(at[0]).type, t) for at, t in shared)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return bool((given.tz is None) == (wanted.tz is None))
    if pa.types.is_date(given) and pa.types.is_timestamp(wanted):
        return bool(wanted.tz is None)
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return any(all(kind(t) for t in (given, wanted)) for kind in _SAME_KIND) or (
        pa.types.is_integer(given) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted))
    )


#: Types in one kind differ in width or unit only.
_SAME_KIND = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
