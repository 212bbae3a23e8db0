"""Leaves a note of the last write of an application where its driver finds it.

Spark commits in a process of its own on the driver's machine, which shares a folder of temporary data with the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

#: Name of the note in the first of Spark's local folders, which Spark removes at the end of the application.
NOTE = "mama_last_write.json"
COUNTS = ("rows", "acked", "published", "failed", "timed_out", "duplicates", "dead_lettered", "perhaps_twice")
REPEATS = "this version was committed before"


def leave_note(fields: dict[str, Any]) -> None:
    """Replace the note. ``fields`` must hold no secrets. Nothing happens where Spark names no folder."""
    folders = [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(path)]
    if not folders:
        return
    target = os.path.join(folders[0], NOTE)
    with contextlib.suppress(OSError):  # the write is done, whether it is noted or not
        with open(f"{target}.new", "w", encoding="utf-8") as file:
            json.dump(fields, file, default=str)
        os.replace(f"{target}.new", target)
