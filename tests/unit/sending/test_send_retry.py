"""Whether a message is sent again, by its error alone."""

from __future__ import annotations

from mama_spark.errors import (
    AckTimeout,
    DuplicateInFlight,
    NoResponders,
    NotPublished,
    PublishError,
    Rejected,
    Stopped,
    Unavailable,
)
from mama_spark.sending.retry import is_final, may_resend, may_resend_elsewhere

from tests.support.tables import each


@each(
    ("error", "repeatable", "not_repeatable"),
    [
        (Rejected("no"), False, False),
        (NoResponders("nobody"), True, True),
        (DuplicateInFlight("409"), True, False),
        (AckTimeout("late"), True, False),
        (Stopped("stopped"), False, False),
        (Unavailable("away"), True, True),
    ],
)
def test_a_copy_that_may_be_stored_needs_an_id(error: PublishError, repeatable: bool, not_repeatable: bool) -> None:
    assert may_resend(error) is repeatable
    assert may_resend(error, repeatable=False) is not_repeatable


def test_the_user_decides_which_errors_are_worth_it_but_not_what_is_safe() -> None:
    assert may_resend(Rejected("no"), retry_on=lambda e: True)
    assert not may_resend(NoResponders("nobody"), retry_on=lambda e: False)
    assert not may_resend(AckTimeout("late"), repeatable=False, retry_on=lambda e: True)


def test_the_next_publisher_takes_what_the_last_one_left() -> None:
    assert may_resend_elsewhere(Stopped("stopped"))
    assert may_resend_elsewhere(NotPublished("stopped"))
    assert not may_resend_elsewhere(Rejected("no"))


def test_final_is_what_was_rejected_and_is_not_stored() -> None:
    assert is_final(Rejected("no"))
    assert not any(map(is_final, (Stopped("s"), AckTimeout("late"), NoResponders("nobody"), DuplicateInFlight("409"))))
