"""Docstrings are shown without the markup of Sphinx."""

from __future__ import annotations

import pytest

from scripts.mkdocs_hooks import on_page_content


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("see :class:<code>~a.b.Name</code>", "see <code>Name</code>"),
        ("see :meth:<code>.Name</code>", "see <code>Name</code>"),
        ("see :data:<code>a.NAME</code>", "see <code>a.NAME</code>"),
        ("<p>An example::</p>", "<p>An example:</p>"),
        ("<p>::</p><pre>x</pre>", "<pre>x</pre>"),
        ("<p>the time: <code>x</code></p>", "<p>the time: <code>x</code></p>"),
    ],
)
def test_roles_and_marks_are_removed(html: str, shown: str) -> None:
    assert on_page_content(html, page=None) == shown
