"""Columns of trace contexts. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.options.values import TRACEPARENT, is_traceparent


def valid_traces(texts: pa.Array) -> pa.Array:
    """The same texts, null where one is no valid ``traceparent``, which is to be ignored (W3C Trace Context, 4.3)."""
    shaped = pc.fill_null(pc.match_substring_regex(texts, TRACEPARENT), False)
    good = shaped.to_numpy(zero_copy_only=False).copy()
    distinct = texts.dictionary_encode()
    bad = [code for code, text in enumerate(distinct.dictionary.to_pylist()) if not is_traceparent(text)]
    if bad:
        good &= ~np.isin(pc.fill_null(distinct.indices, -1).to_numpy(), bad)
    return texts if good.all() else pc.if_else(pa.array(good), texts, pa.scalar(None, pa.string()))
