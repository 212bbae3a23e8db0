"""Make the pictures of README.md and docs/how-to/watch-a-write.md from a real run: ``make pictures``.

Publishes the flights of ``make run`` to a broker of its own, looks at them with ``mama top`` meanwhile and with
``mama report`` afterwards, and draws both in a headless browser.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from importlib import import_module
from pathlib import Path

from mama_spark.cli.top.app import LiveViewApp
from mama_spark.cli.top.collector import Collector
from mama_spark.cli.top.model import LiveModel
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.report.page import report
from playwright.sync_api import BrowserContext

from tests.support.browser import browser_context

#: The job of ``make run``; a clone has it outside the package.
demo = import_module("mama_spark.jobs.demo")
FOLDER = Path(".run/pictures")
PICTURES = Path("docs/pictures")
MOST_BYTES = 300_000
#: Of the browser's window, in CSS pixels.
WIDTH, REPORT_HEIGHT = 1000, 1150


def publish(url: str, log: Path) -> None:
    """The flights, as ``make run`` does."""
    spark = demo.session(FOLDER)
    try:
        demo.publish(spark, demo.flights_csv(FOLDER), url, log)
    finally:
        spark.stop()


def live_view(url: str, writing: threading.Thread) -> str:
    """The screen of ``mama top`` while the write runs, as SVG: of the moment at which most was stored a second."""
    collector = Collector({"url": url}, LiveModel())

    async def watch() -> str:
        app = LiveViewApp(collector, 0.5)
        best, shown = 0, ""
        async with app.run_test(size=(100, 26)) as pilot:
            await pilot.press("4")
            while writing.is_alive():
                await pilot.pause(0.5)
                rate = app.model.totals()["stored_per_second"]
                trends = [len(str(row[2])) for row in app.model.table("streams")]
                if rate >= best and max(trends, default=0) >= 6:
                    best, shown = rate, app.export_screenshot(title="mama top")
        return shown

    try:
        return asyncio.run(watch())
    finally:
        collector.close()


def draw(context: BrowserContext, page: Path, target: Path, selector: str | None) -> None:
    """A PNG of the page, or of one element of it."""
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    if selector is None:
        tab.screenshot(path=target, clip={"x": 0, "y": 0, "width": WIDTH, "height": REPORT_HEIGHT}, full_page=True)
    else:
        tab.locator(selector).screenshot(path=target)
    tab.close()
    size = target.stat().st_size
    assert size < MOST_BYTES, f"{target} has {size:,} bytes"
    print(f"{target}: {size:,} bytes")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    PICTURES.mkdir(exist_ok=True)
    log = FOLDER / "flight_log"
    with NatsServer(FOLDER / "nats") as server:
        demo.create_streams(server.url)
        writing = threading.Thread(target=publish, args=(server.url, log))
        began = time.monotonic()
        writing.start()
        screen = live_view(server.url, writing)
        writing.join()
        print(f"published in {time.monotonic() - began:.0f} s")
    (FOLDER / "top.html").write_text(f"<body style='margin:0'>{screen}", encoding="utf-8")
    page = report(str(log)).save(FOLDER / "report.html")
    with browser_context(str(FOLDER / "profile"), viewport={"width": WIDTH, "height": 900}) as context:
        draw(context, page, PICTURES / "report.png", None)
        draw(context, FOLDER / "top.html", PICTURES / "top.png", "svg")


if __name__ == "__main__":
    main()
