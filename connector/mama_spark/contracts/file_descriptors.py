"""Checks that file descriptors are left before a library opens some that it cannot do without."""

from __future__ import annotations

import os

from .errors import Unavailable


def require_file_descriptors(count: int, what: str) -> None:
    """Open ``count`` file descriptors and close them again.

    libzmq ends the whole process when it gets none for its own threads, and asyncio leaves half an event loop behind.

    :param what: needs them; for the error
    :raises Unavailable: fewer are left
    """
    found: list[int] = []
    try:
        while len(found) < count:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as e:
        raise Unavailable(
            f"{e.strerror}: {what} needs {count} file descriptors, {len(found)} are left; close files and connections, "
            "or raise the limit (ulimit -n)"
        ) from e
    finally:
        for descriptor in found:
            os.close(descriptor)
