"""The screen of ``mama top``. Needs the extra ``top``."""

from __future__ import annotations

import contextlib
import threading
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, Tab, Tabs

from ...console.output import printable
from .collector import Collector, watch
from .model import COLUMNS, Cells, LiveModel, select

_STYLES = {
    "ONLINE": "green", "LIVE": "green", "OK": "green", "SUSPECT": "yellow", "STALE": "yellow", "OFFLINE": "red",
    "offline": "red", "error": "red", "gap": "red",
}  # fmt: skip
#: Characters of a cell of the table; Enter shows the whole row.
_WIDEST = 40


class LiveTable(DataTable[Text]):
    """Enter on a row shows it in full."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "details")]


class DetailScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "back")]

    def __init__(self, names: tuple[str, ...], row: Cells) -> None:
        super().__init__()
        self._text = Text("\n").join(
            Text.assemble((f"{name}: ", "bold"), printable(value)) for name, value in zip(names, row, strict=True)
        )

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="detail"):
            yield Static(self._text)
            yield Static(Text("\nEscape goes back", "dim"))


class LiveViewApp(App[None]):
    """Shows a model that a collector feeds from a thread, every ``interval`` seconds."""

    CSS = """
    #head { height: 1; background: $primary; color: $text; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis }
    #problem { height: auto; max-height: 2; color: $error; padding: 0 1; display: none }
    #problem.shown { display: block }
    #filter { height: 1; border: none; padding: 0 1; display: none }
    #filter.shown { display: block }
    DataTable { height: 1fr }
    DetailScreen { align: center middle }
    #detail { width: 76; max-width: 95%; height: auto; max-height: 80%; border: round $primary; padding: 0 1 }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("p,space", "pause", "pause"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "show_all", "all rows", show=False),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        *(Binding(str(i), f"show('{name}')", name, show=False) for i, name in enumerate(COLUMNS, 1)),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "mama top"

    def __init__(self, collector: Collector, interval: float) -> None:
        super().__init__()
        self._collector, self._interval = collector, interval
        self._stop = threading.Event()
        self.model: LiveModel = collector.model
        self.shown = "sources"
        self.paused = False
        #: Column, and whether the largest comes first.
        self.sort_by = {"streams": (1, True), "readers": (2, True), "publishers": (2, True)}
        self.rows: list[Cells] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Tabs(*(Tab(f"{i} {name}", id=name) for i, name in enumerate(COLUMNS, 1)))
        yield Static(id="problem")
        yield Input(
            placeholder="rows with this text; Enter goes back to the table, Escape to all rows",
            id="filter",
            compact=True,
        )
        yield LiveTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.refresh_table()
        self.collect()

    def on_unmount(self) -> None:
        self._stop.set()

    @work(thread=True, exclusive=True)
    def collect(self) -> None:
        """Collect until the screen is closed; the model changes on this thread only while the screen waits for it."""

        def show(problem: str) -> None:
            if not self._stop.is_set():
                with contextlib.suppress(NoMatches):  # the screen is being taken down
                    self.call_from_thread(self._show_round, problem)

        watch(self._collector, self._interval, self._stop.wait, show)

    def _show_round(self, problem: str) -> None:
        line = self.query_one("#problem", Static)
        line.update(Text(printable(problem)))
        line.set_class(bool(problem), "shown")
        if not self.paused:
            self.refresh_table()

    def refresh_table(self) -> None:
        """Show the model as it is now; the cursor stays on its row."""
        self.query_one("#head", Static).update(self._head())
        table, names = self.query_one(DataTable), COLUMNS[self.shown]
        column, descending = self.sort_by.get(self.shown, (None if self.shown == "events" else 0, False))
        text = self.query_one("#filter", Input).value
        self.rows = select(self.model.table(self.shown), text, column, descending)
        at, left = table.cursor_row, table.scroll_x
        table.clear(columns=True)
        for i, name in enumerate(names):
            mark = (" ▼" if descending else " ▲") if i == column and self.shown in self.sort_by else ""
            table.add_column(name + mark)
        table.add_rows([_cell(value) for value in row] for row in self.rows)
        table.move_cursor(row=min(at, max(0, len(self.rows) - 1)), scroll=True)
        table.scroll_x = left

    def _head(self) -> Text:
        """The numbers first: a narrow terminal cuts the URLs at the end."""
        totals = self.model.totals()
        return Text(
            ("PAUSED  " if self.paused else "") + f"{totals['online']}/{totals['sources']} sources online  "
            f"{totals['stored_per_second']:,} stored/s  {totals['in_flight']:,} in flight  "
            f"{totals['failed']:,} failed  lag {totals['lag']:,}  {self._collector.name}"
        )

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self.shown = str(event.tab.id)
        self.refresh_table()

    def action_show(self, name: str) -> None:
        self.query_one(Tabs).active = name

    def action_pause(self) -> None:
        self.paused = not self.paused
        self.refresh_table()

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.set_class(True, "shown")
        line.focus()

    def action_show_all(self) -> None:
        line = self.query_one("#filter", Input)
        line.value = ""
        line.set_class(False, "shown")
        self.query_one(DataTable).focus()

    def on_input_changed(self, _: Input.Changed) -> None:
        self.refresh_table()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.set_class(bool(event.value), "shown")
        self.query_one(DataTable).focus()

    def action_sort(self) -> None:
        column, descending = self.sort_by.get(self.shown, (-1, False))
        self.sort_by[self.shown] = ((column + 1) % len(COLUMNS[self.shown]), descending)
        self.refresh_table()

    def action_reverse(self) -> None:
        column, descending = self.sort_by.get(self.shown, (0, False))
        self.sort_by[self.shown] = (column, not descending)
        self.refresh_table()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self.rows):
            self.push_screen(DetailScreen(COLUMNS[self.shown], self.rows[event.cursor_row]))


def _cell(value: object) -> Text:
    text = printable(value)
    short = text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
    right = isinstance(value, int | float) and not isinstance(value, bool)
    return Text(short, _STYLES.get(text, ""), justify="right" if right else "left")
