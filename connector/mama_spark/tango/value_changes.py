"""Decides which differences of a value are changes, by thresholds of events and archives. Pure.

=========================================== ================================================================
numbers, no thresholds                      any difference
numbers, absolute threshold                 if an element differs by it or more
numbers, relative threshold                 the same in percent of the earlier value; from 0 any difference
NaN and a number, either way                a change
NaN and NaN, two equal infinities           none
=========================================== ================================================================

If there are two thresholds, one of them suffices. Differences of integers are exact, also beyond 2^53. Booleans and
enums are not numbers (:data:`WITHOUT_THRESHOLDS`): any difference is a change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .types import DataType

Limits = tuple[float, float]  #: largest negative and smallest positive difference that count
#: Types of elements in arrays to which thresholds do not apply.
WITHOUT_THRESHOLDS = frozenset((DataType.BOOLEAN, DataType.ENUM))


def has_changed(old: npt.NDArray[Any], new: npt.NDArray[Any], absolute: Limits | None, relative: Limits | None) -> bool:
    """Whether any element differs by the thresholds (``relative``: percent). ``old`` is as long as ``new``; both of
    floats, or of integers (of any type, or objects)."""
    if absolute is None and relative is None:
        return not np.array_equal(old, new, equal_nan=old.dtype.kind == "f")
    if old.dtype.kind == "f":
        old_nan, new_nan = np.isnan(old), np.isnan(new)
        if (old_nan != new_nan).any():
            return True
        old, new = old[~old_nan], new[~new_nan]
    before = old.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        delta = _difference(old, new)
        if absolute is not None and _outside(delta, absolute):
            return True
        if relative is None:
            return False
        undefined = (before == 0) | np.isinf(before)
        percent = np.where(undefined, np.sign(delta) * np.inf, delta / np.abs(before) * 100)
    return _outside(percent[delta != 0], relative)


def _difference(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if old.dtype.kind != "f" and old.dtype.itemsize == 8:  # computed exactly, since a double has fewer digits
        exact: npt.NDArray[np.float64] = (new.astype(object) - old.astype(object)).astype(np.float64)
        return exact
    found: npt.NDArray[np.float64] = new.astype(np.float64) - old.astype(np.float64)
    return np.where(new == old, 0.0, found)  # 0 for two equal infinities too


def _outside(numbers: npt.NDArray[np.float64], limits: Limits) -> bool:
    return bool(((numbers <= limits[0]) | (numbers >= limits[1])).any())
