"""Messages that would become far more than their bytes: little memory, under a limit of the process, and a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

WANTED: dict[str, dict[str, Any]] = {
    "line feeds": {"rows": 1, "reason": "it has 33,554,433 lines and announces 2"},
    "as many rows as may be": {"rows": 1_000_000, "reason": None},
    "200 columns that are null": {"rows": 1_000_000},
    "a million rows of JSON": {"rows": 1, "reason": "MB of text); name its columns by .schema()"},
    "10,000 columns": {"rows": 1, "reason": None},
    "headers of a megabyte": {"rows": 8, "headers": 1},
    "a million headers": {"rows": 1, "headers": 0, "reason": "it has more than 65,536 headers, which are not read"},
    "50,000 properties of Malamute": {"rows": 1, "headers": 50_000},
    "a million properties of Malamute": {"rows": 1, "headers": 0, "reason": "more than 65,536 headers"},
    "13 million properties sent to Malamute": {"rows": 0, "headers": 0, "reason": "too many"},
    "many blocks of headers": {"rows": 128, "headers": 9_000},
    "100,000 topics": {"rows": 1, "event": "bad_record", "source": "s", "reason": "are more than the 262,144 that are"},
    "100,000 topics over Malamute": {
        "rows": 1, "event": "bad_record", "source": "s", "reason": "are more than the 262,144 that are",
    },
    "fields of one name": {"rows": 1, "event": "bad_record", "source": "s", "reason": "are more than the 262,144 that"},
    "a vector of messages": {"rows": 1, "event": "bad_record", "source": "s", "reason": "are more than the 262,144"},
    "a vector of strings": {"rows": 1, "event": "bad_record", "source": "s", "reason": "are more than the 262,144"},
    "an image of zeros": {"rows": 0, "reason": "an image of more than 268,435,456 bytes"},
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    # arenas and pools reserve addresses that they never use
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, "-m", "tests.support.bombs"], env=environment, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]
    answers: dict[str, dict[str, Any]] = json.loads(made.stdout)
    return answers


@pytest.mark.parametrize("bomb", WANTED)
def test_a_bomb_takes_little_memory_and_is_rows_or_one_row_with_a_reason(
    bomb: str, found: dict[str, dict[str, Any]]
) -> None:
    answer, wanted = dict(found[bomb]), dict(WANTED[bomb])
    reason, wanted_reason = answer.pop("reason", None), wanted.pop("reason", None)
    assert answer == wanted
    assert wanted_reason in reason if wanted_reason is not None else reason is None


def test_rows_that_share_a_large_header_come_a_few_at_a_time(found: dict[str, dict[str, Any]]) -> None:
    assert 0 < found["a header for each of a million rows"]["rows"] < 3_000
