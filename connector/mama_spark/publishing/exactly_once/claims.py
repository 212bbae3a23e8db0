"""Claims: which stored rows of earlier runs the tasks of this run have settled their rows with. Pure.

Where a run has another number of partitions than the one before, equal rows may lie in two of its partitions while one
of them is stored, with an id that names neither. So before a task settles a row with a stored one, it claims that. The
claims of a run are one log in the store of the markers: the claims with the keys ``claim.0``, ``claim.1``, ..., each
written by compare-and-set, so that all tasks see them in one order. A claim says how many rows of which contents a
partition takes; they are the first ones that are free, so all tasks that have read the same stored rows agree on which
these are. A repeated task finds the claims of its partition in the log and uses them again.

A claim of another run is void, and is overwritten by the next one with its number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson

from mama_spark.contracts.errors import ConfigError

from .found_rows import Distinct, Keys

MOST = 16_384  #: contents in one claim: 16 bytes each


@dataclass(frozen=True, slots=True)
class Claim:
    """:ivar contents: with the number of rows of each; a claim of another run has none"""

    batch: int
    run: str
    partition: int
    contents: Distinct


def encode(claim: Claim) -> bytes:
    keys, counts = claim.contents.keys, claim.contents.counts
    head = orjson.dumps({"batch": claim.batch, "run": claim.run, "partition": claim.partition, "n": len(keys)})
    columns = (keys.high.astype("<u8"), keys.low.astype("<u4"), counts.astype("<u4"))
    return b"\n".join((head, b"".join(column.tobytes() for column in columns)))


def decode(value: bytes) -> Claim | None:
    """None for an empty value.

    :raises ConfigError: it is none of ours
    """
    if not value:
        return None
    head, _, body = value.partition(b"\n")
    try:
        found = orjson.loads(head)
        n = int(found["n"])
        if len(body) != 16 * n:
            raise ValueError("its length is wrong")
        high = np.frombuffer(body, "<u8", n)
        low, counts = (np.frombuffer(body, "<u4", n, at) for at in (8 * n, 12 * n))
        contents = Distinct(Keys(high, low), counts.astype(np.int64))
        return Claim(int(found["batch"]), str(found["run"]), int(found["partition"]), contents)
    except (ValueError, TypeError, KeyError) as e:
        raise ConfigError(f"not a claim of mama-spark ({e}): {value[:100]!r}; does something else write there?") from e
