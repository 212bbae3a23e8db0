"""Option ``gcFreeze``: a worker of Spark visits what it has imported no more when it collects garbage.

A reused worker collects all its garbage after each task, planning and commit, before it takes the next one. It visits
every object of every imported module, which takes longer than to publish a small micro-batch, and Spark waits for it
when the next micro-batch follows at once.
"""

from __future__ import annotations

import gc
import sys

from .plain_errors import in_worker

_last_count = _frozen_count = 0


def exempt_modules() -> None:
    """Exempt imported modules from garbage collection. Call first wherever Spark calls a worker; no effect elsewhere.

    What exists is exempted once the work before has imported nothing new: the worker has just collected, so no garbage
    is kept, and what comes later is collected as ever. A worker that imports more is exempted again.
    """
    global _last_count, _frozen_count
    if not in_worker():
        return
    count = len(sys.modules)
    if count == _last_count and count != _frozen_count:
        gc.freeze()
        _frozen_count = count
    _last_count = count
