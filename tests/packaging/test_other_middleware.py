"""A middleware of another package, ``tests/example_middleware``, is used without a change of this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from mama_spark.cli import main as cli
from mama_spark.console.help import Subcommand
from mama_spark.contracts import middlewares
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.options import SinkOptions, redact_url
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.registry import batch_ledger, publisher_bridge
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.option_loading import DiscoveryProperties
from mama_spark.spark.sink.announcer import SourceAnnouncer, source_record

EXAMPLE = Path(__file__).parents[1] / "example_middleware"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are that were installed: the example, by links."""
    site, info = tmp_path / "site", tmp_path / "site" / "mama_files-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "mama_files").symlink_to(EXAMPLE / "mama_files")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mama-files\nVersion: 1.0\n")
    [(group, points)] = PROJECT["entry-points"].items()
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()))
    monkeypatch.syspath_prepend(str(site))
    before = dict(middlewares.MIDDLEWARES), dict(middlewares.SCHEMES)
    monkeypatch.setattr(middlewares, "_begun", False)
    yield site
    for table, kept in zip((middlewares.MIDDLEWARES, middlewares.SCHEMES), before, strict=True):
        for name in table.keys() - kept.keys():
            del table[name]


def announcer_of(o: SinkOptions) -> SourceAnnouncer:
    record = source_record(o, "1", streaming=False, query_name=None, app_name="app", app_id="app-1")
    return SourceAnnouncer(o, DiscoveryProperties(), record, "ids")


@pytest.fixture
def url(site: Path, tmp_path: Path) -> str:
    return f"files://{tmp_path}/messages"


def test_it_publishes_reads_and_announces(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pub", "a.b", "one", "--url", url]) == 0
    with ManagedPublisher(publisher_bridge(SinkOptions.parse({"url": url}))) as publisher:
        assert publisher.publish_async("a.c", b"two").result().publish_ack_future.result() is not None
    source = MamaSubDataSource({"url": url, "topics": "a.>"})
    reader = source.reader(source.schema())
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["topic"], row["value"], row["sequence"]) for row in rows] == [("a.b", b"one", 1), ("a.c", b"two", 2)]
    announcer = announcer_of(SinkOptions.parse({"url": url, "announce": "true", "sourceName": "desk"}))
    assert announcer.start()
    announcer.finish()
    capsys.readouterr()
    assert cli.main(["sources", "--once", "--json", "--url", url]) == 0
    assert [json.loads(line)["source_name"] for line in capsys.readouterr().out.splitlines()] == ["desk"]


def test_options_and_texts_know_it(url: str) -> None:
    o = SinkOptions.parse({"url": url, "bridge": "files"})
    assert (o.bridge_name, o.middleware.title) == ("files", "Files")
    assert redact_url(f"{url},files://joe:pw@b") == f"{url},files://***@b"
    with pytest.raises(OptionError, match="jsDomain is for NATS, and the url is of Files"):
        SinkOptions.parse({"url": url, "jsDomain": "hub"})
    with pytest.raises(ConfigError, match="'files' cannot tell which rows are stored"):
        batch_ledger(o)
    with pytest.raises(OptionError, match="unknown scheme kafka://; known are files, memory"):
        SinkOptions.parse({"url": "kafka://host"})


def test_its_subcommands_are_those_of_mama(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("files_commands")
    vars(module).update(
        COMMANDS={"wipe": Subcommand("files_commands", "remove a file", package="mama-files")},
        add_arguments=lambda parser: parser.add_argument("path"),
        run=lambda args: len(args.path),
    )
    monkeypatch.setitem(sys.modules, "files_commands", module)
    monkeypatch.setattr(cli, "SUBCOMMANDS", dict(cli.SUBCOMMANDS))
    assert middlewares.of_url(url) is not None
    files = replace(middlewares.SCHEMES["files"], commands="files_commands:COMMANDS")
    with monkeypatch.context() as patched:
        patched.setitem(middlewares.MIDDLEWARES, "files", files)
        assert cli.main(["wipe", "abc"]) == 3


def test_one_that_cannot_be_loaded_or_named_in_a_url_is_reported_and_left_out(
    site: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = ModuleType("odd_names")
    module.A = replace(middlewares.MIDDLEWARES["memory"], name="odd", schemes="odd")  # type: ignore[attr-defined,arg-type]
    module.B = replace(middlewares.MIDDLEWARES["memory"], name="odd", schemes=("Odd(",))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd_names", module)
    points = site / "mama_files-1.0.dist-info" / "entry_points.txt"
    points.write_text(
        "[mama_spark.middlewares]\nother = missing:M\nno = json:dumps\nnats = mama_spark.contracts.middlewares:_NATS\n"
        "a = odd_names:A\nb = odd_names:B\n"
    )
    with pytest.raises(OptionError, match="unknown scheme files"):
        SinkOptions.parse({"url": url})
    reasons = {text.partition(" of the package mama-files cannot be used: ")[2] for text in caplog.messages}
    assert reasons > {
        "there is a middleware with nats, tls already", "json:dumps is no Middleware", "No module named 'missing'"
    }  # fmt: skip
    assert len(caplog.messages) == 5
    assert middlewares.find("odd") is None


def test_subcommands_that_cannot_be_loaded_are_left_out(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = middlewares.of_url(url)
    assert files is not None
    with monkeypatch.context() as patched:
        patched.setitem(middlewares.MIDDLEWARES, "files", replace(files, commands="missing:COMMANDS"))
        with pytest.raises(SystemExit):
            cli.main(["flihgts"])
    assert "did you mean" in capsys.readouterr().err


JOB = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
df = spark.range(100).selectExpr("concat('a.', id % 3) AS topic", "CAST(id AS STRING) AS value")
df.write.format("mamapub").option("url", sys.argv[1]).option("announce", "true").mode("append").save()
def read(name):
    return spark.read.format(name).option("url", sys.argv[1])
print("FOUND", read("mamasub").option("topics", "a.>").load().select("value").distinct().count(),
      [row.event for row in read("mamadiscovery").load().select("event").collect()])
spark.stop()
"""


@pytest.mark.thorough
def test_spark_uses_it_once_pip_has_installed_it(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(EXAMPLE, project)  # a build leaves files there
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", site, project], check=True, timeout=120)
    path = os.pathsep.join([str(site), *(os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    done = subprocess.run(
        [sys.executable, "-c", JOB, f"files://{tmp_path}/messages"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=250, check=False,
    )  # fmt: skip
    assert "FOUND 100 ['offline']" in done.stdout, done.stderr[-3000:]
