"""Messages and records of OpenMAMA as columns of ``mamasub``: the type of the column ``mama``, whose fields
:mod:`.openmama_rows` describes."""

from __future__ import annotations

import pyarrow as pa

from mama_spark.contracts.message import RecordFormat

__all__ = ["FIELD_TYPE", "FORMAT", "TYPE"]

#: Type of a field in the map.
FIELD_TYPE: pa.StructType = pa.struct([("fid", pa.int32()), ("type", pa.string()), ("value", pa.string())])
TYPE: pa.StructType = pa.struct(
    [
        *((name, pa.string()) for name in ("kind", "framing", "topic")),
        ("received", pa.int64()),
        *((name, pa.string()) for name in ("msg_type", "msg_status")),
        ("seq_num", pa.int64()),
        ("sender", pa.string()),
        ("fields", pa.map_(pa.string(), FIELD_TYPE)),
        *((name, pa.int64()) for name in ("gap_from", "gap_to")),
        *((name, pa.string()) for name in ("cause", "detail", "reason")),
    ]
)
FORMAT = RecordFormat(
    "mama",
    TYPE,
    "mama_spark.openmama.rows.openmama_rows:OpenMamaColumns",
    packed=True,
    field_columns="mama_spark.openmama.rows.field_columns:field_columns",
    fields="mama_spark.openmama.rows.field_columns:typed_fields",
)
