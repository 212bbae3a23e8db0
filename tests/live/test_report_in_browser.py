"""The report page in a real browser: opened from disk, without network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.staging import Staging
from mama_spark.report.page import Report, report

from tests.support.browser import browser_context
from tests.support.flight_logs import BATCH, T0, flights

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.thorough

SECOND = 1_000_000
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    with browser_context(str(tmp_path_factory.mktemp("profile")), viewport={"width": 1000, "height": 900}) as context:
        yield context


class Opened:
    """A page that is shown.

    :ivar problems: what the browser complained of
    """

    def __init__(self, browser: BrowserContext, made: Report, folder: Path) -> None:
        self.data, self.problems = made.data, list[str]()
        self.page: Page = browser.new_page()
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda request: self.problems.append(request.url))
        self.page.goto(made.save(folder / "report.html").as_uri())

    def column(self, table: str, number: int) -> list[str]:
        cells = self.page.locator(f"{table} tbody tr:visible td:nth-child({number})")
        return cells.all_text_contents()

    def labels(self) -> list[str]:
        """What the plots say of their marks, which is also shown where the mouse is."""
        return [title or "" for title in self.page.locator("figure svg title").all_text_contents()]


def made_of(table: Path, *columns: Any, events: tuple[LoggedEvent, ...] = ()) -> Report:
    staging = Staging(str(table), {}, BATCH, 0, 0)
    staging.check()
    staging.add_events(list(events))
    for some in columns:
        staging.add_flights(some)
    commit(str(table), {}, BATCH, staging.close())
    return report(str(table))


def picture_is_not_blank(page: Page) -> bool:
    """Whether text and lines are drawn: an image of one color is much smaller."""
    return len(page.screenshot()) > 10_000


def test_an_empty_log_is_said_and_draws_nothing(browser: BrowserContext, tmp_path: Path) -> None:
    made_of(tmp_path, flights(3))
    shown = Opened(browser, report(str(tmp_path), run="another"), tmp_path)
    assert shown.page.locator("h1").text_content() == "The flight log has no messages of this run or time."
    assert "Without a run and a time" in (shown.page.locator("header").text_content() or "")
    assert shown.page.locator("figure").count() == 0
    assert shown.problems == []
    assert shown.page.screenshot()


def test_a_perfect_run_has_its_numbers_in_the_plots(browser: BrowserContext, tmp_path: Path) -> None:
    shown = Opened(browser, made_of(tmp_path, flights(200), flights(100, "later", at=T0 + 2 * SECOND)), tmp_path)
    assert shown.page.locator("h1").text_content() == "All 300 rows were acknowledged."
    assert "partition: 0; rows: 300; outcome: acked" in shown.labels()
    bars = [text for text in shown.labels() if text.startswith("latency")]
    drawn = sum(float(text.split("messages: ")[1].split(";")[0]) for text in bars)
    assert drawn == 300, "the bars of the distribution"
    for figure in shown.page.locator("figure").all():
        assert "Healthy:" in (figure.locator("figcaption").text_content() or "")
        box = figure.locator("svg").bounding_box()
        assert box is not None
        assert box["width"] > 600
    assert shown.problems == []
    assert picture_is_not_blank(shown.page)


def test_an_outage_is_shaded_and_light_dark_and_paper_differ(browser: BrowserContext, tmp_path: Path) -> None:
    waited: dict[str, Any] = {"publish_time": np.full(5, T0), "latency_us": np.full(5, 4 * SECOND)}
    lost = LoggedEvent("publisher", "error", T0 + SECOND, info="connection lost", publisher_state="LIVE")
    made = made_of(tmp_path, flights(50), flights(5, "waited", at=T0 + 4 * SECOND, **waited), events=(lost,))
    shown = Opened(browser, made, tmp_path)
    assert [text for text in shown.labels() if text.endswith("standstill: outage")] != []
    assert "One outage of" in (shown.page.locator("header").text_content() or "")
    assert "connection lost" in (shown.page.locator("#errors + .scroll").text_content() or "")
    light = shown.page.screenshot()
    shown.page.emulate_media(color_scheme="dark")
    dark = shown.page.screenshot()
    shown.page.emulate_media(media="print", color_scheme="light")
    assert shown.page.locator("input[type=search]").is_hidden()
    shown.page.set_viewport_size({"width": 720, "height": 900})
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 720, "nothing is cut on a page of A4"
    assert len({light, dark, shown.page.screenshot()}) == 3
    assert len(shown.page.pdf()) > 10_000
    assert shown.problems == []


def test_ten_thousand_topics_are_sorted_and_searched(browser: BrowserContext, tmp_path: Path) -> None:
    n = 10_000
    topics = pa.array([f"orders.{i}" for i in range(n)] + ["orders.7"] * 5).dictionary_encode()
    shown = Opened(browser, made_of(tmp_path, flights(n + 5, topic=topics, latency_us=np.arange(n + 5) * 10)), tmp_path)
    page = shown.page
    assert page.locator("#by-topic tbody tr").count() == n
    page.locator("#by-topic th", has_text="p99").get_by_role("button").click()
    first = [float(text.replace(",", "")) for text in shown.column("#by-topic", 8)]
    assert first == sorted(first, reverse=True)
    assert len(set(first)) > 1000
    page.locator("#by-topic th", has_text="topic").get_by_role("button").click()
    page.locator("#by-topic th", has_text="topic").get_by_role("button").click()
    assert page.locator("#by-topic th").first.get_attribute("aria-sort") == "ascending"
    assert shown.column("#by-topic", 1)[:2] == ["orders.0", "orders.1"]
    page.get_by_label("Search topics").fill("ORDERS.77")
    assert len(shown.column("#by-topic", 1)) == 111
    assert shown.problems == []


def test_html_in_rows_is_text(browser: BrowserContext, tmp_path: Path) -> None:
    topics = pa.array([HOSTILE] * 3).dictionary_encode()
    event = LoggedEvent("publisher", "error", T0, info=HOSTILE, publisher_state="LIVE")
    hostile = flights(3, HOSTILE, failed=1, topic=topics, reasons={2: (HOSTILE, 403, HOSTILE)})
    shown = Opened(browser, made_of(tmp_path, hostile, events=(event,)), tmp_path)
    assert shown.page.title() == "Delivery report: 1 of 3 rows was not acknowledged."
    assert shown.page.locator("img").count() == 0
    assert shown.column("#by-topic", 1) == [HOSTILE]
    assert shown.problems == []
