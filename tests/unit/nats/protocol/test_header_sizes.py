"""Headers that are too large for a stream: their row fails, with its size as the reason, and no other."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import TooLarge
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.protocol.headers import MAX_BLOCK, blocks, check

MAX_PAYLOAD = 8 << 20


def batch(value: str, ids: list[str] | None) -> MessageBatch:
    return MessageBatch.of(["t"] * 3, [b"x"] * 3, [{"a": ["1"]}, {"big": [value]}, None], ids)


@pytest.mark.parametrize("ids", [None, ["i1", "i2", "i3"]], ids=["no ids", "ids"])
def test_a_header_of_a_megabyte_fails_its_row_alone(ids: list[str] | None) -> None:
    found, _ = check(batch("v" * (1 << 20), ids), MAX_PAYLOAD)
    assert list(found) == [1]
    assert isinstance(found[1], TooLarge)
    width = blocks(batch("v" * (1 << 20), ids))[1]
    assert width is not None
    assert found[1].info.startswith(f"the header block has {width[1]} bytes, a stream takes {MAX_BLOCK}")


def test_a_header_block_may_have_64_kib_less_an_octet() -> None:
    width = blocks(batch("", None))[1]
    assert width is not None
    most = MAX_BLOCK - int(width[1])
    assert check(batch("v" * most, None), MAX_PAYLOAD)[0] == {}
    assert list(check(batch("v" * (most + 1), None), MAX_PAYLOAD)[0]) == [1]
