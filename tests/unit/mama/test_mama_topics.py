"""Topics made from root, source and symbol."""

from __future__ import annotations

import pytest
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.topics import join_topic

from tests.support.tables import each


@pytest.mark.spec("PE-22-PE-24")
@each(
    ("parts", "topic"),
    [
        ((None, None, None), ""),
        ((None, None, "SYM"), "SYM"),
        ((None, "SRC", None), "SRC"),
        ((None, "SRC", "SYM"), "SRC.SYM"),
        (("_MD", "SRC", "SYM"), "_MD.SRC.SYM"),
        (("_MDDD", "", "SYM.B"), "_MDDD.SYM.B"),
        (("", "", ""), ""),
    ],
)
def test_our_bridges_join_all_parts_and_skip_missing_ones(parts: tuple[str | None, ...], topic: str) -> None:
    assert join_topic(*parts) == topic


@pytest.mark.spec("PE-22-PE-24")
@each(("place", "most"), [(0, 5), (1, 64), (2, 128)])
def test_the_length_of_parts_is_limited_in_bytes(place: int, most: int) -> None:
    for char in ("a", "é", "€", "\U0001f600"):
        size = len(char.encode())
        parts = [None, None, None]
        parts[place] = char * (most // size)  # type: ignore[call-overload]
        assert join_topic(*parts)
        parts[place] = char * (most // size + 1)  # type: ignore[call-overload]
        with pytest.raises(StatusError, match=f"longer than {most} bytes") as e:
            join_topic(*parts)
        assert e.value.status is Status.BAD_SYMBOL


def test_the_longest_parts_make_a_topic_that_fits() -> None:
    assert len(join_topic("r" * 5, "s" * 64, "y" * 128)) == 199


def test_a_topic_holds_no_nul() -> None:
    with pytest.raises(StatusError, match="NUL") as e:
        join_topic(None, "a", "b\0")
    assert e.value.status is Status.BAD_SYMBOL
