"""Which worker of xdist runs which test files.

A file stays on one worker and shares what it has started. The first worker runs those of ``tests/spark`` first, so that
there is one Java process and not one a worker (two in the second tier, whose tests in Spark take longer than all
others); the others run what mostly waits for servers. Files of ``tests/unit`` come last: they are short, and so all
workers end at about the same time.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK = "tests/spark/"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole files."""

    def _next_file(self, node: WorkerController) -> str | None:
        """The file that this worker should run next, or None: it has done its part."""
        names = list(self.workqueue)
        spark = [name for name in names if name.startswith(SPARK)]
        rest = [name for name in names if not name.startswith(SPARK)]
        workers = 2 if self.config.option.markexpr.startswith("thorough") else 1
        mine = self.nodes.index(node) < workers
        return next(iter([*spark, *rest] if mine else rest), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        name = self._next_file(node)
        if name is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)
