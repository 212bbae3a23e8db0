"""The lag of a query, computed from what Spark reports of its sources."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from mama_spark import lag

from tests.support.tables import each


def at(sequence: int, identity: str = "a", **more: int) -> dict[str, Any]:
    return {"next": sequence, "identity": identity, **more}


def progress(*sources: tuple[Any, Any], as_text: bool = True) -> dict[str, Any]:
    def shown(offset: Any) -> Any:
        return json.dumps(offset) if as_text else offset

    return {"sources": [{"endOffset": shown(end), "latestOffset": shown(latest)} for end, latest in sources]}


@each(
    ("sources", "expected"),
    [
        ([({"A": at(11, rows=400)}, {"A": at(11)})], {"A": 0}),
        ([({"A": at(11)}, {"A": at(31), "NEW": at(6)})], {"A": 20, "NEW": 5}),
        ([({"A": at(900)}, {"A": at(6, "made again")})], {"A": 5}),
        ([({"A": at(11)}, {"A": at(9)})], {"A": 0}),
        ([({"A": at(1)}, {"A": at(3)}), ({"A": at(2)}, {"A": at(3)})], {"A": 3}),
        ([({"A": at(1)}, None), ({"at": {"n": 4}}, {"at": {"n": 9}}), (7, 9), (None, {"A": at(4)})], {"A": 3}),
        ([], {}),
    ],
)
@each("as_text", [True, False])
def test_lag_is_what_was_stored_and_not_read_of_each_stream(
    sources: list[tuple[Any, Any]], expected: dict[str, int], as_text: bool
) -> None:
    found = progress(*sources, as_text=as_text)
    assert lag(found) == expected
    assert lag(SimpleNamespace(lastProgress=found)) == expected
    assert lag(SimpleNamespace(sources=[SimpleNamespace(**source) for source in found["sources"]])) == expected


def test_a_query_without_progress_and_a_source_of_files_have_no_lag_and_what_is_no_query_is_refused() -> None:
    assert lag(SimpleNamespace(lastProgress=None)) == {}
    assert lag({"sources": [{"endOffset": "file:/tmp/x", "latestOffset": '{"logOffset": 3}'}]}) == {}
    with pytest.raises(TypeError, match="a streaming query or its progress"):
        lag("query")
