"""The fault campaign: a short one in ``make test-all``, an hour of it in ``make explore``.

``MAMA_CAMPAIGN_MINUTES`` (60) and ``MAMA_CAMPAIGN_SEED`` (chosen, and printed) choose another run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from tests.campaign.oracle import StoredMessage, judge
from tests.campaign.rounds import play
from tests.campaign.rows import Amount, expected
from tests.campaign.run import campaign, totals

MINUTES = float(os.environ.get("MAMA_CAMPAIGN_MINUTES", "60"))
ROW = ("campaign.0", b"0.000.0000000.")
OTHER = ("campaign.1", b"0.000.0000001.")


def the_seed() -> int:
    seed = int(os.environ.get("MAMA_CAMPAIGN_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"MAMA_CAMPAIGN_SEED={seed} MAMA_CAMPAIGN_MINUTES={MINUTES:g}")
    return seed


def event(
    row: tuple[str, bytes], name: str = "acked", *, landed: bool = False, committed: bool = True
) -> dict[str, object]:
    return {
        "topic": row[0], "payload": row[1], "headers": None, "event": name, "may_have_landed": landed,
        "committed": committed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "events", "wrong"),
    [
        ([ROW, OTHER], [event(ROW), event(OTHER)], {}),
        ([ROW], [event(ROW), event(OTHER)], {"lost": 1}),
        ([ROW], [event(ROW), event(OTHER, committed=False)], {"lost": 1, "unaccounted": 1}),
        ([ROW, ROW, OTHER], [event(ROW), event(OTHER)], {"doubled": 1}),
        ([ROW, OTHER], [event(ROW)], {"unaccounted": 1}),
        ([ROW, OTHER], [event(ROW), event(OTHER), event(OTHER)], {"unaccounted": 1}),
        ([ROW, OTHER], [event(ROW), event(OTHER, "timeout")], {"contradicted": 1, "failed": 1}),
        ([ROW, OTHER], [event(ROW), event(OTHER, "timeout", landed=True)], {"failed": 1}),
        ([ROW, OTHER, ("x", b"0.000.0000002.")], [event(ROW), event(OTHER)], {"foreign": 1}),
        ([OTHER, ROW], [event(ROW), event(OTHER)], {"disordered": 1}),
    ],
)
def test_the_oracle_sees_each_kind_of_fault(
    stored: list[tuple[str, bytes]], events: list[dict[str, object]], wrong: dict[str, int]
) -> None:
    found = judge(Counter((ROW, OTHER)), (StoredMessage(*row, None) for row in stored), events)
    assert found.faults(may_double=False, may_fail=False, ordered=True) == wrong


def test_the_oracle_counts_equal_rows() -> None:
    def wrong(stored: int, acked: int) -> dict[str, int]:
        found = judge(Counter({ROW: 2}), [StoredMessage(*ROW, None)] * stored, [event(ROW)] * acked)
        return found.faults(may_double=False, may_fail=False, ordered=True)

    assert [wrong(*n) for n in ((2, 2), (1, 2), (3, 2), (2, 1), (2, 3))] == [
        {}, {"lost": 1}, {"doubled": 1}, {"unaccounted": 1}, {"unaccounted": 1}
    ]  # fmt: skip


def test_rows_are_the_same_whenever_they_are_asked_for() -> None:
    amount = Amount(2, 2, 700)
    assert len(expected(amount)) == 2 * 2 * 700
    assert expected(amount) == expected(amount)


@pytest.mark.thorough
def test_a_round_of_the_campaign(tmp_path: Path) -> None:
    """The program itself is tried every day: rounds until a fault struck, since a write may be over before."""
    for seed in count(5):
        done = play(seed, tmp_path / f"round {seed}", only="task killed", bridge="NATS R1", small=True)
        print(done)
        assert not done.wrong
        assert done.findings.rows
        if done.strikes:
            break
    assert totals([done]).count(done.fault.name) == 1


@pytest.mark.explore
@pytest.mark.timeout(60 * MINUTES + 1_800)
def test_no_fault_of_a_long_campaign_loses_or_doubles_a_row(tmp_path: Path) -> None:
    done = campaign(tmp_path, the_seed(), minutes=MINUTES)
    print(totals(done))
    assert done
    assert not [str(one) for one in done if one.wrong]
