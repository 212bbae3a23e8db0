"""Credit of one receiver: it adds up, each delivery uses one, and use never makes it negative."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol.credit import DeliveryCredit

from tests.support.tables import each
from tests.support.tiers import examples


def test_without_a_first_credit_there_is_no_limit() -> None:
    credit = DeliveryCredit()
    assert all(credit.use() for _ in range(3))
    assert (credit.left, credit.exhausted, credit.limit(7), credit.take_back(), repr(credit)) == (
        None, False, 7, 0, "any",
    )  # fmt: skip
    assert credit.left is None


def test_the_limit_can_be_lifted() -> None:
    credit = DeliveryCredit(0)
    assert not credit.use()
    credit.give(None)
    assert credit.use()
    credit.give(0)
    assert credit.exhausted


@each(("most", "covered"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_a_batch_is_limited_by_what_is_left(most: int, covered: int) -> None:
    assert DeliveryCredit(3).limit(most) == covered


@examples(100)
@given(st.lists(st.integers(0, 5) | st.sampled_from(["use", "recall"]), max_size=40))
def test_what_is_used_or_taken_back_was_given(steps: list[int | str]) -> None:
    credit, expected = DeliveryCredit(0), 0
    for step in steps:
        if isinstance(step, int):
            credit.give(step)
            expected += step
        elif step == "recall":
            assert credit.take_back() == expected
            expected = 0
        else:
            assert credit.use() is (expected > 0)
            expected = max(0, expected - 1)
        assert (credit.left, credit.exhausted, repr(credit)) == (expected, not expected, str(expected))
