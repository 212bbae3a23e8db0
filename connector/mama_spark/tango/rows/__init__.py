"""Tango's events as rows of Spark: the type of the column ``tango`` of ``mamasub``, whose fields :mod:`.tango_rows`
describes."""

from __future__ import annotations

import pyarrow as pa

from mama_spark.contracts.message import RecordFormat

__all__ = ["FORMAT", "TYPE", "VALUES"]

#: part of the columns' names -> type of the elements
VALUES: dict[str, pa.DataType] = {
    "double": pa.float64(), "long": pa.int64(), "ulong": pa.decimal128(20, 0), "bool": pa.bool_(),
    "string": pa.string(), "encoded": pa.struct([("format", pa.string()), ("data", pa.binary())]),
}  # fmt: skip
#: Arrow type of the column.
TYPE: pa.StructType = pa.struct(
    [
        *((name, pa.string()) for name in ("kind", "origin", "tango_host", "device", "attribute", "event")),
        *((name, pa.int64()) for name in ("received", "ctr", "data_time")),
        *((name, pa.string()) for name in ("quality", "data_type", "format")),
        *((name, pa.int32()) for name in ("dim_x", "dim_y", "w_dim_x", "w_dim_y")),
        *((f"{part}_{name}", pa.list_(kind)) for part in ("value", "set") for name, kind in VALUES.items()),
        ("errors", pa.list_(pa.struct([(name, pa.string()) for name in ("reason", "severity", "desc", "origin")]))),
        *((name, pa.int64()) for name in ("gap_from", "gap_to", "gap_count")),
        *((name, pa.string()) for name in ("cause", "detail", "reason")),
    ]
)
FORMAT = RecordFormat("tango", TYPE, "mama_spark.tango.rows.tango_rows:TangoColumns")
