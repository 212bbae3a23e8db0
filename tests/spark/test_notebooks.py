"""The notebooks of the documentation run, and show what they are to show."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mama_spark.nats.commands.serve import add_demo_stream
from mama_spark.nats.server.nats_server import NatsServer

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # of the kernel's own client
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("see-a-write", ["20,000", "All 20,000 rows were acknowledged.", "Rows acknowledged a second"]),
        ("publish-failures-again", ["BAD_SYMBOL", "997 acked, 3 failed", "3 acked", "rows were acknowledged."]),
    ],
)
def test_a_notebook_runs_and_shows_its_results(
    name: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient  # not there in `make test`

    with NatsServer(tmp_path / "nats") as server:
        add_demo_stream(server.url)
        monkeypatch.setenv("NATS_URL", server.url)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        notebook = read(NOTEBOOKS / f"{name}.ipynb")
        NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    pages = "".join(_html(notebook))
    for text in shown:
        assert text in pages


@pytest.mark.thorough
def test_notebooks_are_kept_without_results() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        assert "".join(_html(read(path))) == ""


def read(path: Path) -> Any:
    import nbformat  # not there in `make test`

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def _html(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [str(output["data"][kind]) for output in outputs if "data" in output for kind in output["data"]]
