"""Folders of Spark for temporary data of the application on this machine."""

from __future__ import annotations

import os


def local_folders() -> list[str]:
    """Those that exist; none in a process that Spark has not started."""
    return [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(path)]
