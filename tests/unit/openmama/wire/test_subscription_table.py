"""Subscriptions as XPUB delivers them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.openmama.wire.subscriptions import SubscriptionChange, SubscriptionTable

from tests.support.tables import each
from tests.support.tiers import examples
from tests.support.vectors import vectors

VECTORS = vectors("openmama-wire")


@pytest.mark.spec("OW2")
@each("v", [v for v in VECTORS if v["kind"] == "subscription"])
def test_recorded_subscriptions(v: dict[str, object]) -> None:
    table, data = SubscriptionTable(), bytes.fromhex(str(v["hex"]))
    decoded = v["decoded"]
    assert isinstance(decoded, dict)
    prefix = decoded["prefix"].encode()
    if not decoded["subscribe"]:
        table.apply(b"\1" + prefix)
    assert table.apply(data) == SubscriptionChange(prefix, decoded["subscribe"])
    assert table.wanted(prefix) is decoded["subscribe"]


def test_a_prefix_has_readers_until_the_last_one_ends() -> None:
    table = SubscriptionTable()
    assert table.apply(b"\1A") == SubscriptionChange(b"A", True)
    assert table.apply(b"\1A") is None
    assert table.readers(b"A") == 2
    assert table.apply(b"\0A") is None
    assert table.wanted(b"AB")
    assert table.apply(b"\0A") == SubscriptionChange(b"A", False)
    assert not table.wanted(b"AB")


def test_what_is_no_subscription_changes_nothing_and_the_number_of_prefixes_has_a_limit() -> None:
    table = SubscriptionTable(most=2)
    begun = [table.apply(data) is not None for data in (b"", b"\2A", b"\0A", b"\1A", b"\1B", b"\1C")]
    assert begun == [False, False, False, True, True, False]
    assert len(table) == 2


@examples(300)
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=3))), st.binary(max_size=4))
def test_it_agrees_with_a_list_of_subscriptions(steps: list[tuple[bool, bytes]], topic: bytes) -> None:
    table, held = SubscriptionTable(), list[bytes]()
    for begins, prefix in steps:
        table.apply(bytes([begins]) + prefix)
        if begins:
            held.append(prefix)
        elif prefix in held:
            held.remove(prefix)
    assert table.wanted(topic) is any((topic + b"\0").startswith(prefix) for prefix in held)
