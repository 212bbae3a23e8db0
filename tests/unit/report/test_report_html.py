"""The report page: what it says, that its plots show the numbers, and that text of rows stays text."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.cli import main as cli
from mama_spark.contracts.errors import PERHAPS_TWICE, ConfigError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.schema import PUBLISHED
from mama_spark.flightlog.staging import Staging
from mama_spark.report.charts import life_line_values
from mama_spark.report.page import ADVICE, Report, report
from mama_spark.report.verdict import verdict

from tests.support.flight_logs import BATCH, STREAM, T0, flights, stage

SCRIPT = "<script>alert('x')</script>&lt;b&gt;"


class Outline(HTMLParser):
    """Elements, their attributes, the cells of tables, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.numbers: dict[str, Any] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.labels += [named["aria-label"] or ""] if "aria-label" in named else []
        self.inside = named.get("id") if tag == "script" else tag

    inside: str | None = None

    def handle_data(self, data: str) -> None:
        if self.inside == "numbers":
            self.numbers, self.inside = json.loads(data), None
        elif self.inside not in (None, "style"):
            self.texts.append(data)


def log_with(table: Path, *columns: Any, events: list[LoggedEvent] | None = None) -> Report:
    staging = Staging(str(table), {}, BATCH, 0, 0)
    staging.check()
    staging.add_events(events or [])
    for some in columns:
        staging.add_flights(some)
    commit(str(table), {}, BATCH, staging.close())
    return report(str(table))


def test_a_perfect_run(tmp_path: Path) -> None:
    events = [
        LoggedEvent("publisher", "create", T0, publisher_state="CREATING"),
        LoggedEvent("publisher", "destroy", T0 + 10_000, publisher_state="DESTROYED"),
    ]
    made = log_with(tmp_path, flights(1000), events=events)
    page = Outline(made.html)
    assert verdict(made.data) == "good"
    assert "All 1,000 rows were acknowledged." in page.texts
    assert page.numbers["totals"]["acked"] == 1000
    assert page.numbers["timeline"] == made.data.timeline
    assert page.tags.count("svg") == page.tags.count("figcaption") == 5
    assert [text for text in page.texts if "Healthy:" in text] == [t for t in page.texts if t.startswith(CAPTIONS)]
    assert "partition: 0; rows: 1000; outcome: acked" in page.labels
    assert 'id="failures"' not in made.html
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == [], "it needs no other file"
    assert not re.search(r"@import|url\((?!#)", made.html)
    assert html.escape(made.html) in made._repr_html_(), "which a notebook shows"
    assert "All 1,000 rows were acknowledged." in repr(made)


CAPTIONS = ("Rows acknowledged", "From the first", "How many", "Rows of each", "Each line")


def test_failures_say_what_to_do_and_points_mark_them(tmp_path: Path) -> None:
    made = log_with(tmp_path, flights(10, failed=4))
    page = Outline(made.html)
    assert verdict(made.data) == "failed"
    assert "4 of 10 rows were not acknowledged." in page.texts
    assert ADVICE["PUBLISH_ERROR_NOT_ENTITLED"] in page.texts
    assert "topic orders.new, id id-6" in page.texts
    assert "partition: 0; rows: 4; outcome: failed" in page.labels
    assert any("what: failed" in label for label in page.labels)


def test_latencies_below_a_tenth_of_a_millisecond_do_not_stretch_the_axes(tmp_path: Path) -> None:
    made = log_with(tmp_path, flights(4, latency_us=np.array([0, 50, 90, 1000])))
    labels = Outline(made.html).labels
    assert [text for text in labels if text.startswith("latency, ms: ")] == [
        "latency, ms: 0.1 to 0.1334; messages: 3", "latency, ms: 1 to 1.334; messages: 1",
    ]  # fmt: skip
    assert "Y-axis titled 'latency, ms' for a log scale with values from 0.1 to 1" in labels


def test_text_of_rows_stays_text(tmp_path: Path) -> None:
    reasons = {2: (SCRIPT, 403, SCRIPT)}
    made = log_with(
        tmp_path, flights(3, SCRIPT, failed=1, topic=pa.array([SCRIPT] * 3).dictionary_encode(), reasons=reasons)
    )
    page = Outline(made.html)
    assert page.tags.count("script") == 2, "the numbers, and what sorts tables"
    assert page.tags.count("b") == 0
    assert SCRIPT in page.texts


def test_a_log_without_messages_of_that_run(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3)))
    made = report(str(tmp_path), run="another")
    page = Outline(made.html)
    assert verdict(made.data) == "empty"
    assert "The flight log has no messages of this run or time." in page.texts
    assert "svg" not in page.tags


def test_ten_thousand_topics_are_a_page_of_few_megabytes(tmp_path: Path) -> None:
    n = 12_000
    made = log_with(tmp_path, flights(n, topic=pa.array([f"orders.{i}.new" for i in range(n)]).dictionary_encode()))
    assert len(made.html) < 5_000_000
    assert len(made.data.topics) == 10_000
    assert "The table shows 10,000 of 12,000 topics, those with failures first." in Outline(made.html).texts


def test_what_was_not_acknowledged_or_not_committed_is_not_called_so(tmp_path: Path) -> None:
    abort(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3, "lost", failed=1)))
    failed = report(str(tmp_path))
    texts = Outline(failed.html).texts
    assert verdict(failed.data) == "failed"
    assert "No write was committed." in texts
    apart = "Not counted: 3 rows in attempts that were not committed: 2 acked, 1 failed, 0 timed out, in doubt 0."
    assert f"{apart} Plots and tables show these attempts." in texts
    assert any("PUBLISH_ERROR_NOT_ENTITLED" in text for text in texts)
    sent = flights(4, event=np.full(4, PUBLISHED, np.uint8), ack_level="none")
    commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, sent))
    made = report(str(tmp_path))
    texts = Outline(made.html).texts
    assert verdict(made.data) == "attention"
    assert "All 4 rows were published, and none acknowledged." in texts
    assert apart in texts


def test_notes_say_what_else_must_be_known(tmp_path: Path) -> None:
    columns = flights(4, duplicate=np.ones(4, np.bool_), sends=np.full(4, 2, np.int32))
    copied = flights(1, "copied", reasons={0: (None, None, f"{PERHAPS_TWICE}: a server was silent")})
    made = log_with(tmp_path, columns, copied)
    texts = Outline(made.html).texts
    assert verdict(made.data) == "attention"
    assert any("perhaps stored twice: 1 row (onSilentServer=publish" in text for text in texts)
    assert "Sent more than once: 4 rows." in texts
    assert "Found again: the server already had 4 rows, and dropped the second copy." in texts


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(str(tmp_path / "log"), {}, BATCH, stage(tmp_path / "log", BATCH, flights(3)))
    target = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path / "log"), "-o", str(target), "--run", "run-7"]) == 0
    assert capsys.readouterr().out == f"All 3 rows were acknowledged. The report is {target}\n"
    assert "All 3 rows were acknowledged." in target.read_text("utf-8")
    assert cli.main(["report", str(tmp_path / "log"), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html: No such file or directory; name another file" in capsys.readouterr().err


def test_a_time_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"since: .*got 'soon'"):
        report(str(tmp_path), since="soon")


def publisher(partition: int, **other: Any) -> dict[str, Any]:
    common = {"run": "r", "batch": None, "partition": partition, "attempt": 0, "topics": 0}
    return {**common, "first": 1000 + partition, "last": 3000, "ended": 1, **other}


def test_life_lines_run_from_the_first_event_to_the_last() -> None:
    publishers = [publisher(2, last=1002, ended=0), publisher(1, topics=3), publisher(0)]
    of = {"run": "r", "batch": None, "attempt": 0}
    errors = [
        {**of, "partition": 1, "kind": "publisher", "at": 2000},
        {**of, "partition": 2, "kind": "topic", "at": 2500},
        {**of, "partition": 9, "kind": "publisher", "at": 2500},  # of a publisher that is not shown
    ]
    lines, marks = life_line_values(publishers, errors)
    assert lines == [
        {"publisher": "partition 0", "from": 1.0, "to": 3.0, "end": "ended"},
        {"publisher": "partition 1, 3 topics", "from": 1.001, "to": 3.0, "end": "ended"},
        {"publisher": "partition 2", "from": 1.002, "to": 1.002, "end": "no end"},
    ]
    assert marks == [
        {"publisher": "partition 1, 3 topics", "from": 2.0, "error": "error of the publisher"},
        {"publisher": "partition 2", "from": 2.5, "error": "error of a topic"},
    ]


def test_options_are_of_the_newest_write_and_skew_is_said(tmp_path: Path) -> None:
    parts = []
    for partition, n in enumerate((10, 10, 40)):
        staging = Staging(str(tmp_path), {}, BATCH, partition, 0)
        staging.check()
        staging.add_flights(flights(n, f"p{partition}"))
        parts += staging.close()
    told = {"run_id": "run-7", "batch_id": None, "query_name": None, "options": {"maxInFlight": "7", "password": "***"}}
    commit(str(tmp_path), {}, BATCH, parts, description=told)
    made = report(str(tmp_path))
    texts = Outline(made.html).texts
    assert made.data.write == told
    assert {"maxInFlight", "7", "password", "***"} <= set(texts)
    assert "Skew: one partition has 4.0 times as many rows as the median partition." in texts
    assert report(str(tmp_path), run="another").data.write is None


MEASURED = """
import sys, time
began = time.monotonic()
from mama_spark.report.page import report
from tests.support.memory import peak_memory
made = report(sys.argv[1])
assert made.data.totals["acked"] == 10_000_000
seconds, memory = time.monotonic() - began, peak_memory() / 1e6
print("REPORT", seconds, time.process_time(), memory, len(made.html) / 1e6)
"""


@pytest.mark.explore
def test_ten_million_messages_are_a_small_page_in_bounded_memory(tmp_path: Path) -> None:
    staging, n = Staging(str(tmp_path), {}, BATCH, 0, 0), 10_000
    random = np.random.default_rng(1)
    for i in range(1000):
        latencies = random.lognormal(8, 0.7, n).astype(np.int64)
        staging.add_flights(flights(n, str(i), at=T0 + 50_000 * i, latency_us=latencies))
    commit(str(tmp_path), {}, BATCH, staging.close())
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    seconds, processor, memory, size = map(float, done.stdout.split()[1:])
    print(f"{seconds:.1f} s, {processor:.1f} s of processor, {memory:.0f} MB of memory, a page of {size:.2f} MB")
    assert memory < 500
    assert size < 5
