"""Names of several streams in one option."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.options import BATCH_READ, BATCH_WRITE, SinkOptions, SubscribeOptions
from mama_spark.options.stream_names import StreamRange, matching_streams, stream_patterns, stream_range

from tests.support.tables import each


@each(
    ("text", "names"),
    [("orders-{0..2}", ("orders-0", "orders-1", "orders-2")), ("{0..1}", ("0", "1")), ("A{0..0}_x", ("A0_x",))],
)
def test_a_range_names_streams_and_is_shown_as_it_is_given(text: str, names: tuple[str, ...]) -> None:
    found = stream_range(text)
    assert found.names == names
    assert str(found) == text


@each(
    "text",
    ["", "orders", "orders-{1..7}", "orders-{7..0}", "a.{0..3}", "a {0..3}", "{0..3}{0..3}", "a*{0..3}", "a{0..1000}"],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names"):
        stream_range(text)


@each(
    ("text", "found"),
    [
        ("orders-{0..1}", ["orders-0", "orders-1"]),
        ("orders-*", ["orders-0", "orders-1", "orders-10", "orders-x"]),
        ("trades, orders-{1..10}", ["orders-1", "orders-10", "trades"]),
        ("*", ["orders-0", "orders-1", "orders-10", "orders-x", "trades"]),
        ("[a-z]*,orders-?", []),
    ],
)
def test_patterns_choose_of_what_is_there(text: str, found: list[str]) -> None:
    there = ["trades", "orders-0", "orders-10", "orders-1", "orders-x"]
    assert matching_streams(stream_patterns(text), there) == found


@each("text", [",", "a.b", "a>", "a-{5..1}", "a-{0..2000}", "a b"])
def test_what_names_no_stream_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names"):
        stream_patterns(text)


def test_options_of_sets_exclude_those_of_one_stream() -> None:
    assert SinkOptions.parse({"streams": "orders-{0..7}"}).streams == StreamRange("orders-", 8)
    assert SubscribeOptions.parse({"streams": "orders-*"}).streams == ("orders-*",)
    for options, given in (
        (SinkOptions, {"streams": "a{0..3}", "stream": "A"}), (SinkOptions, {"growStreams": "true"}),
        (SubscribeOptions, {"streams": "a", "stream": "A"}),
    ):  # fmt: skip
        with pytest.raises(OptionError):
            options.parse(given, BATCH_WRITE if options is SinkOptions else BATCH_READ)
