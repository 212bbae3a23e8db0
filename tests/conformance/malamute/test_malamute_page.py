"""The examples of the pages on Malamute run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mama_spark.malamute.protocol.commands import Ok, StreamDeliver, StreamRead, StreamSend, StreamWrite

from tests.support.malamute.mlp import MlpSite, Peer

DOCS = Path(__file__).parents[3] / "docs"


def example(page: str) -> str:
    """The one Python block of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def test_the_quick_start_works(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("how-to/run-the-malamute-broker.md"), {})
    assert capsys.readouterr().out == "temp.moscow b'-3'\n"


@pytest.mark.spec("ML-02", "ML-06")
def test_the_example_engine_gives_new_readers_the_last_message_of_each_subject(site: MlpSite) -> None:
    """An engine of somebody else, plugged in by name."""
    exec(example("how-to/write-a-stream-engine.md"), {})
    broker = site.broker({b"^prices$": "last-value"})
    writer, reader = (site.peer(Peer, broker, name) for name in (b"w", b"r"))
    assert writer.ask(StreamWrite(b"prices")) == Ok()
    writer.send(*(StreamSend(subject, [price]) for subject, price in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))))
    assert writer.ask(StreamWrite(b"prices")) == Ok()  # the engine has them
    got = [reader.ask(StreamRead(b"prices", b"")), reader.get(), reader.get()]
    assert Ok() in got
    assert StreamDeliver(b"prices", b"w", b"a", [b"3"]) in got
    assert StreamDeliver(b"prices", b"w", b"b", [b"2"]) in got
