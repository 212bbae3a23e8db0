"""Key-value buckets (NATS ADR-8): how a stream keeps one, and what a message says that was done to its key. Pure.

A bucket is the stream ``KV_<bucket>``, a key the subject ``$KV.<bucket>.<key>``. A mirror keeps the subjects of its
origin, so a key is what follows the second dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.record_log import PUT
from mama_spark.packing.pack_headers import first_values

from .headers import MARKER_REASON, MAX_AGE

#: Header that names the operation on a key, and its values; without the header: a put.
OPERATION, DELETE, PURGE = "KV-Operation", "DEL", "PURGE"
#: With ``sub``, the server removes all earlier messages of the subject.
ROLLUP, ROLLUP_SUBJECT = "Nats-Rollup", "sub"
#: The column ``operation`` by header and value; of the server's markers (NATS ADR-43), ``Remove`` is a deletion.
_MEANING = {
    OPERATION: {DELETE: "delete", PURGE: "purge"},
    MARKER_REASON: {MAX_AGE: "expired", "Purge": "purge", "Remove": "delete"},
}

STREAM, _SUBJECT = "KV_", "$KV."
_KEY = r"^[-/_=a-zA-Z0-9]([-/_=.a-zA-Z0-9]*[-/_=a-zA-Z0-9])?$"


def are_keys(keys: pa.Array) -> pa.Array:
    """Whether clients of NATS take these as keys. The server takes each subject without empty parts."""
    return pc.fill_null(pc.match_substring_regex(keys, _KEY), False)


def stream_of(bucket: str) -> str:
    return f"{STREAM}{bucket}"


def write_prefix(config: Mapping[str, Any]) -> str:
    """The part before the key in the subject of a message to this bucket, or to the origin of a mirror."""
    mirror = config.get("mirror") or {}
    head = (mirror.get("external") or {}).get("api", "")
    origin = str(mirror.get("name") or config["name"]).removeprefix(STREAM)
    return f"{head}.{_SUBJECT}{origin}." if head else f"{_SUBJECT}{origin}."


def topics_of(patterns: Iterable[str]) -> tuple[str, ...]:
    """Filters of the subjects of these keys (wildcards allowed), in a bucket or a mirror of it."""
    return tuple(f"{_SUBJECT}*.{pattern}" for pattern in patterns)


def keys_of(subjects: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(subjects, r"^\$KV\.[^.]+\.", "")


def operations_of(headers: pa.Array | None, n: int) -> pa.Array:
    """Operation of each of ``n`` records on its key or topic: ``put``, ``delete``, ``purge`` or ``expired``."""
    found = pa.nulls(n, pa.string())
    if headers is not None:
        for name, meaning in _MEANING.items():
            values = first_values(headers, name)[0]
            index = pc.index_in(values, pa.array(list(meaning)))
            found = pc.coalesce(found, pa.array(list(meaning.values())).take(index))
    return pc.fill_null(found, PUT)
