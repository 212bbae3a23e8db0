"""Words and sentences that pages and sources have given up for better ones."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The better ones: bytes; needlessly; and what the module says today.
GIVEN_UP = re.compile(
    r"\b[Oo]ctets?\b|\bin vain\b|gave_up|end_at_gap|worker_pauses|missing_when_opened|inspect_range|\b_patiently\b"
    r"|\b_(SURE|CERTAIN)\b|nothing says that the reader takes it|that the caller already knows to be wrong"
    r"|because its time was over, not|What is to be sent again now|would be stored before its repetition"
    r"|means that the process stood still|never an older one|middlewares that take less than others"
    r"|each piece of work that Spark gives|however many processes write it|What ends the promise"
)
#: CORBA's octets, and a column of stores.
OCTETS = (
    "tango/giop/", "tango/idl/", "tango/events/", "malamute/broker/engines/durable/store.py", "tests/unit/tango/",
    "bench/tango/",
)  # fmt: skip


def test_words_that_were_given_up_do_not_come_back() -> None:
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    paths += [path for folder in ("connector", "jobs", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    paths.remove(Path(__file__).resolve())
    for path in paths:
        text = re.sub(r"\s+(?:#:? )?", " ", path.read_text(encoding="utf-8"))
        found = {found[0] for found in GIVEN_UP.finditer(text)}
        allowed = {"octet", "octets"} if any(part in path.relative_to(ROOT).as_posix() for part in OCTETS) else set()
        assert found <= allowed, path
