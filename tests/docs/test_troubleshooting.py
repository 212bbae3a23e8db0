"""Each error text that docs/troubleshooting.md quotes is raised or logged by the package."""

from __future__ import annotations

import ast
import json
import re
import zipfile
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
OF_SPARK = re.findall(r"(?m)^### Text of Spark: `(.*)`$", PAGE)
QUOTED = re.findall(r"(?m)^### `(.*)`$", PAGE)
OPEN = "\0"  #: stands for a part of a text that differs from case to case


def literals(tree: ast.AST) -> list[str]:
    """Every text of the source; parts that are formatted into it are :data:`OPEN`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else OPEN for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"%[-+ #0-9,.]*[a-z]", OPEN, node.value))
    return found


@pytest.fixture(scope="module")
def texts() -> list[str]:
    package = ROOT / "connector" / "mama_spark"
    return [text for path in package.rglob("*.py") for text in literals(ast.parse(path.read_text(encoding="utf-8")))]


def test_the_page_quotes_texts() -> None:
    assert len(QUOTED) >= 40
    assert len(QUOTED) == len(set(QUOTED))


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_text_is_in_the_source(quoted: str, texts: list[str]) -> None:
    """``…`` stands for anything, also for nothing at the beginning and at the end."""
    pattern = re.compile(".*".join(re.escape(part) for part in quoted.split("…")), re.DOTALL)
    assert any(pattern.search(text) for text in texts), "no error or warning has this text: change the page"


#: A write without a mode, CREATE TABLE with the catalog of Delta, and a format that was not registered.
@pytest.mark.parametrize(
    "condition", ["UNSUPPORTED_DATA_SOURCE_SAVE_MODE", "_LEGACY_ERROR_TEMP_1135", "DATA_SOURCE_NOT_FOUND"]
)
def test_what_spark_says_in_our_place_is_found_by_its_words(condition: str) -> None:
    (jar,) = (Path(pyspark.__path__[0]) / "jars").glob("spark-common-utils_*.jar")
    with zipfile.ZipFile(jar) as classes:
        text = " ".join(json.loads(classes.read("error/error-conditions.json"))[condition]["message"])
    said = max(re.split(r"<\w+>", text.partition(". ")[0]), key=len).strip(' ".')
    assert any(said in quoted or quoted == condition for quoted in OF_SPARK), said
