"""A headless Chromium of the system, driven by Playwright: without network, and with a profile of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

#: Milliseconds that the browser may take for a step, such as a table of 10,000 rows on a busy machine.
DEADLINE = 180_000
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium() -> str:
    """The path of the browser, which `make setup` installs."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("there is no chromium: run make setup")


@contextmanager
def browser_context(profile: str, **options: Any) -> Iterator[BrowserContext]:
    """A browser that ends with the block.

    :param profile: an empty folder
    :param options: of Playwright's ``launch_persistent_context``, such as ``color_scheme``
    """
    from playwright.sync_api import sync_playwright  # only `make test-all` brings it

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), headless=True, args=list(_FLAGS), offline=True, **options
        )
        context.set_default_timeout(DEADLINE)
        context.set_default_navigation_timeout(DEADLINE)
        try:
            yield context
        finally:
            context.close()
