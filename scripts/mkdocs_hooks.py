"""Hooks of MkDocs: shows docstrings, which are written in Sphinx's markup, as Markdown renders them.

MkDocs calls :func:`on_page_content` for each page, because ``mkdocs.yml`` lists this file.
"""

from __future__ import annotations

import re
from typing import Any

#: (pattern, replacement) of HTML that Markdown made of a docstring.
_MARKUP = (
    (re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):(?=<code>)"), ""),
    (re.compile(r"<code>(?:~(?:\w+\.)*|\.)(\w+)</code>"), r"<code>\1</code>"),
    (re.compile(r" Pure\.</p>"), "</p>"),  # for tests/test_architecture.py
    (re.compile(r"<p>::</p>"), ""),
    (re.compile(r"::</p>"), ":</p>"),
)


def on_page_content(html: str, **_: Any) -> str:
    """The content of a page without roles (``:class:`~package.Name```) and without the marks of literal blocks."""
    for pattern, replacement in _MARKUP:
        html = pattern.sub(replacement, html)
    return html
