"""The examples of docs/how-to/read-packs-without-spark.md read what the sink makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.packing.codec import codec_of
from mama_spark.packing.compression import PackCompressor
from mama_spark.packing.packer import Packer, Rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "read-packs-without-spark.md"
#: Environments keep node and its packages beside Python's (scripts/setup.sh).
JS = Path(sys.prefix) / "js" / "node_modules"


def example(language: str) -> str:
    (code,) = [c for c in re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S) if "rows(headers" in c]
    return str(code)


def packed(option: str, columns: pa.RecordBatch, compression: str | None = None) -> tuple[dict[str, str], bytes]:
    packer = Packer(codec_of(option, columns.schema), max_rows=1_000, max_bytes=65_536)
    rows = Rows(pa.array(["t"] * len(columns)).dictionary_encode(), columns, np.arange(len(columns)))
    (packs,) = [*packer.add(rows), *packer.finish()]
    batch = packs.batch if compression is None else PackCompressor(compression).compress(packs.batch)
    assert batch.headers is not None
    return {name: values[0] for name, values in batch.headers[0].as_py()}, batch.payloads[0].as_py()


VALUES = ["first", "", "übergrößenträger", "last"]
MESSAGES = pa.RecordBatch.from_arrays(
    [
        pa.array([v.encode() for v in VALUES]),
        pa.array([[("a", ["1", "2"])], [], None, None], HEADERS_TYPE),
        pa.array(["i-1", None, "i-3", None]),
    ],
    ["value", "headers", "id"],
)
TYPED = pa.record_batch({"n": pa.array([1, 2, None], pa.int32()), "x": [0.5, None, 2.0], "s": ["a", None, "ü"]})
#: Many equal values: worth a compression.
LONG = pa.record_batch({"value": [b"first", b"second"] * 500})
CASES: dict[str, tuple[str, pa.RecordBatch, str | None]] = {
    "lines": ("lines", MESSAGES.select(["value"]), None),
    "arrow": ("arrow", MESSAGES, None),
    "typed": ("arrow", TYPED, None),
    **{f"{option}, {name}": (option, LONG, name) for option in ("lines", "arrow") for name in ("lz4", "zstd")},
}


def rows_of(case: str) -> list[Any]:
    option, columns, _ = CASES[case]
    rows: list[Any] = columns.column("value").to_pylist() if option == "lines" else columns.to_pylist()
    return rows


@pytest.mark.parametrize("case", CASES)
def test_the_python_example_reads_packs(case: str) -> None:
    scope: dict[str, Any] = {}
    exec(example("python"), scope)
    headers, payload = packed(*CASES[case])
    assert headers["Mama-Pack"].endswith(";v=1" if CASES[case][2] is None else ";v=2")
    assert scope["rows"](headers, payload) == rows_of(case)
    with pytest.raises(ValueError, match="instead of"):
        scope["rows"]({**headers, "Mama-Pack-Rows": "77"}, payload)
    with pytest.raises(ValueError, match="unknown pack"):
        scope["rows"]({**headers, "Mama-Pack": "lines;v=3"}, payload)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [case for case, (*_, name) in CASES.items() if name != "lz4"])
def test_the_javascript_example_reads_packs(case: str, tmp_path: Path) -> None:
    def text(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    want = [
        {name: text(value) for name, value in row.items() if name != "headers"} if isinstance(row, dict) else text(row)
        for row in rows_of(case)
    ]
    assert read_by_javascript(*packed(*CASES[case]), tmp_path) == want


def read_by_javascript(headers: dict[str, str], payload: bytes, folder: Path) -> Any:
    node = shutil.which("node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert node, "node is missing: run make setup"
    assert (JS / "apache-arrow").is_dir(), "the package apache-arrow is missing: run make setup"
    (folder / "pack").write_bytes(payload)
    script = example("javascript") + (
        "const found = rows(JSON.parse(process.argv[2]), require('fs').readFileSync(process.argv[3]));\n"
        "const plain = (_, v) => v instanceof Uint8Array ? new TextDecoder().decode(v) : v;\n"
        "const bytes = (row) => typeof row === 'string' ? row : Object.fromEntries(Object.entries(row).map("
        "([k, v]) => [k, v instanceof Uint8Array ? new TextDecoder().decode(v) : k === 'headers' ? undefined : v]));\n"
        "console.log(JSON.stringify(found.map(bytes), plain));\n"
    )
    (folder / "read.js").write_text(script)
    done = subprocess.run(
        [node, str(folder / "read.js"), json.dumps(headers), str(folder / "pack")],
        env={**os.environ, "NODE_PATH": str(JS)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
