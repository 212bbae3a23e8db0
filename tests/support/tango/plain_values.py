"""What was read of Tango, in the words of ``tests/vectors/tango.json``."""

from __future__ import annotations

from typing import Any

import numpy as np
from mama_spark.tango.types import AttributeValue, DataType, DevError, DevState, Encoded

_KINDS = {"DEVICE_STATE": "dev_state", "STATE": "state_array"}  #: names that are others there


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [repr(v) if v != v or v in (np.inf, -np.inf) else v for v in value.tolist()]
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, Encoded):
        return {"format": value.format, "data": plain(value.data)}
    if isinstance(value, DevState):
        return value.name
    if isinstance(value, DevError):
        return {**value._asdict(), "severity": value.severity.name}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def time_of(ns: int) -> dict[str, int]:
    return {"sec": ns // 10**9, "usec": ns // 1000 % 10**6, "nsec": ns % 1000}


def attribute_value(value: AttributeValue) -> dict[str, Any]:
    typed = {}
    if value.data_type is not None:
        typed = {"data_type": value.data_type, "data_type_name": "DEV_" + DataType(value.data_type).name}
    return {
        "value_kind": _KINDS.get(value.kind.name, value.kind.name.lower()), "value": plain(value.content),
        "quality": value.quality.name, "data_format": value.format.name, **typed, "time": time_of(value.time),
        "name": value.name, "r_dim": value.r_dim._asdict(), "w_dim": value.w_dim._asdict(),
        "errors": plain(value.errors),
    }  # fmt: skip
