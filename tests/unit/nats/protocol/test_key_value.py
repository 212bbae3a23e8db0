"""Key-value buckets, as streams keep them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.nats.protocol import key_value

from tests.support.tables import each


def test_what_a_message_does_to_its_key() -> None:
    found = {
        None: "put",
        (("x", "DEL"),): "put",
        (("KV-Operation", "DEL"),): "delete",
        (("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")): "purge",
        (("KV-Operation", "PURGE"), ("Nats-TTL", "60")): "purge",
        (("Nats-Rollup", "sub"),): "put",
        (("Nats-Marker-Reason", "MaxAge"), ("Nats-TTL", "1s")): "expired",
        (("Nats-Marker-Reason", "Purge"),): "purge",
        (("Nats-Marker-Reason", "Remove"),): "delete",
    }
    headers = pa.array([lines and [(name, [value]) for name, value in lines] for lines in found], HEADERS_TYPE)
    assert key_value.operations_of(headers, len(found)).to_pylist() == list(found.values())
    assert key_value.operations_of(None, 2).to_pylist() == ["put", "put"]


def test_keys_and_subjects() -> None:
    subjects = pa.array(["$KV.b.a", "$KV.origin.a.$KV.b.c"])
    assert key_value.keys_of(subjects).to_pylist() == ["a", "a.$KV.b.c"]
    assert key_value.topics_of(["a.>", "*"]) == ("$KV.*.a.>", "$KV.*.*")
    assert key_value.stream_of("b") == "KV_b"
    keys = pa.array(
        [b"a/b=c_-.D", b"a", b".a", b"a.", b".", b"", b"a b", b"*", b"a\n", b"\xff", None], pa.large_binary()
    )
    assert key_value.are_keys(keys).to_pylist() == [True, True, *[False] * 9]


@each(
    ("config", "prefix"),
    [
        ({}, "$KV.b."),
        ({"mirror": {"name": "KV_origin"}}, "$KV.origin."),
        ({"mirror": {"name": "KV_origin", "external": {"api": "$JS.hub.API"}}}, "$JS.hub.API.$KV.origin."),
    ],
)
def test_a_mirror_is_written_at_its_origin(config: dict[str, Any], prefix: str) -> None:
    assert key_value.write_prefix({"name": "KV_b", **config}) == prefix
