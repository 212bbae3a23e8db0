"""Requests about the members of a stream set: so many at once, and as much time as there are."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.jetstream.set_members import AT_ONCE, in_groups, time_limit
from mama_spark.nats.stream_set import StreamSet
from mama_spark.options.stream_names import StreamRange


def test_requests_are_on_their_way_together_and_answers_are_in_order() -> None:
    now = most = 0

    async def ask(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return number

    assert asyncio.run(in_groups([partial(ask, n) for n in range(100)])) == list(range(100))
    assert most == AT_ONCE


def test_the_first_error_is_raised_when_the_others_have_ended() -> None:
    ended = []

    async def ask(number: int) -> None:
        await asyncio.sleep(0 if number % 2 else 0.01)
        ended.append(number)
        if number in (3, 5, 40):
            raise ConfigError(f"stream {number}")

    with pytest.raises(ConfigError, match="stream 3"):
        asyncio.run(in_groups([partial(ask, n) for n in range(100)]))
    assert sorted(ended) == list(range(AT_ONCE))


def test_more_members_have_more_time() -> None:
    one, all_ = (time_limit(StreamSet(StreamRange("orders-", count)), 2.0) for count in (1, 1_000))
    assert one < 2.0 * AT_ONCE
    assert all_ > 2.0 * 1_000 / AT_ONCE
