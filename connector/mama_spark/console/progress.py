"""Progress of long work: a bar in a terminal and in a notebook, else a line on standard error every ten seconds."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from .output import is_rich, rich_console

#: Seconds between two lines where no terminal is, and in the log of a task.
LINE_INTERVAL = 10.0
#: Work that is done sooner shows nothing.
QUIET = 1.0
#: Seconds between two pictures in a notebook.
NOTEBOOK_INTERVAL = 0.5


class Progress:
    """Shows how much is done, how fast and how much is left, as long as the block lasts.

    :param what: the work, for example ``publishing``
    :param unit: what is counted, plural
    :param total: number of all units; None = unknown
    :param stream: standard error without one
    """

    def __init__(self, what: str, unit: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._stream = stream or sys.stderr
        self._done, self._note = 0, ""
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="mama-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._cell = _notebook_cell()  # here, as only this thread knows the cell that runs
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, n: int = 1) -> None:
        self._done += n

    def show(self, done: int, note: str = "") -> None:
        """Set the number of finished units, and the text behind; while ``done`` is 0, no rate is measured."""
        if not done:
            self._began = time.monotonic()  # the rate is of the work, and not of its preparation
        self._done, self._note = done, note

    def line(self) -> str:
        """``publishing: 12,000 of 50,000 messages, 3,000/s, 13 s left``, and the note"""
        return f"{self._what}: {self._counts()}" + (f", {self._note}" if self._note else "")

    def _counts(self) -> str:
        done, total = self._done, self._total
        seconds = time.monotonic() - self._began
        rate = done / seconds if seconds > 0 else 0.0
        of = "" if total is None else f" of {total:,}"
        parts = [f"{done:,}{of} {self._unit}", f"{rate:,.0f}/s"]
        if total is not None and rate and total > done:
            parts.append(f"{_time((total - done) / rate)} left")
        return ", ".join(parts)

    def _run(self) -> None:
        if self._cell is not None:
            self._draw_in(self._cell)
            return
        if self._stop.wait(QUIET):
            return
        if is_rich(self._stream):
            self._draw()
            return
        while not self._stop.wait(LINE_INTERVAL):
            print(f"mama: {self.line()}", file=self._stream, flush=True)

    def _draw_in(self, cell: Any) -> None:
        from IPython.display import HTML

        while True:
            ended = self._stop.wait(NOTEBOOK_INTERVAL)
            whole = "" if self._total is None else f' max="{self._total}" value="{self._done}"'
            bar = "" if ended else f"<progress{whole}></progress> "
            cell.update(HTML(bar + html.escape(self.line())))  # type: ignore[no-untyped-call,unused-ignore]
            if ended:
                return

    def _draw(self) -> None:
        with _bar(self._stream, lambda: self._note) as bar:
            task = bar.add_task(self._what, total=self._total, text="")
            while True:
                ended = self._stop.wait(0.1)
                bar.update(task, completed=self._done, total=self._total, text=self._counts())
                if ended:
                    return


def _notebook_cell() -> Any:
    """The display of a notebook for the progress; None = this is no notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    return display(HTML(""), display_id=True)  # type: ignore[no-untyped-call,unused-ignore]


def _time(seconds: float) -> str:
    """``90 s``, ``15 min``, ``3 h``"""
    for most, size, unit in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < most:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 3600:,.0f} h"


def _bar(stream: TextIO, note: Callable[[], str]) -> Any:
    """A progress bar of Rich with the text of ``note`` on a line below, unless it is empty."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column
    from rich.text import Text

    class Bar(RichProgress):
        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table(self.tasks)
            if text := note():
                yield Text(f"  {text}", "dim", no_wrap=True, overflow="ellipsis")

    def fixed(template: str) -> TextColumn:
        return TextColumn(template, table_column=Column(no_wrap=True, overflow="ellipsis"))

    columns = (SpinnerColumn(), fixed("{task.description}"), BarColumn(20), fixed("{task.fields[text]}"))
    return Bar(*columns, console=rich_console(stream), transient=True)
