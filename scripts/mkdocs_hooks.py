"""Hooks of MkDocs: docstrings are written for Sphinx, whose roles (``:class:`Name```) Markdown shows as text."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub("", html)
