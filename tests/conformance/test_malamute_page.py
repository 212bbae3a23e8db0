"""What docs/malamute.md says can be done, done; and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import zmq
from mama_spark.malamute.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.wire import Ok, Open, StreamDeliver, StreamRead, StreamSend, StreamWrite, decode, encode

ROOT = Path(__file__).parents[2]
TESTING = ROOT / "connector" / "mama_spark" / "testing"
PAGE = (ROOT / "docs" / "malamute.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_quick_start_works(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[0], {})
    out = capsys.readouterr().out.splitlines()
    assert [line[:12] for line in out[:2]] == ["Ok(code=200,"] * 2
    assert "subject=b'temp.moscow', content=[b'-3']" in out[2]


def test_the_example_engine_gives_new_readers_the_last_message_of_each_subject() -> None:
    """ML-02, ML-06: an engine of somebody else, plugged in by name."""
    exec(EXAMPLES[1], {})
    settings = BrokerSettings("tcp://127.0.0.1:*", engines=(EngineChoice(b"^prices$", "last-value"),))
    with Broker(settings) as broker, zmq.Context() as context:
        writer, reader = context.socket(zmq.DEALER), context.socket(zmq.DEALER)

        def ask(socket: zmq.Socket[bytes], command: Open | StreamWrite | StreamRead) -> object:
            socket.send_multipart(encode(command))
            assert socket.poll(60_000)
            return decode(socket.recv_multipart())

        try:
            for socket in (writer, reader):
                socket.linger = 0
                socket.connect(broker.endpoint)
            assert ask(writer, Open(b"w")) == Ok()
            assert ask(writer, StreamWrite(b"prices")) == Ok()
            for subject, price in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3")):
                writer.send_multipart(encode(StreamSend(subject, [price])))
            assert ask(writer, StreamWrite(b"prices")) == Ok()  # the engine has them
            assert ask(reader, Open(b"r")) == Ok()
            got = [ask(reader, StreamRead(b"prices", b"")), decode(reader.recv_multipart())]
            got.append(decode(reader.recv_multipart()))
            assert Ok() in got
            assert StreamDeliver(b"prices", b"w", b"a", [b"3"]) in got
            assert StreamDeliver(b"prices", b"w", b"b", [b"2"]) in got
        finally:
            writer.close()
            reader.close()


def test_every_id_has_its_line_and_every_test_that_is_named_exists() -> None:
    listed = {int(n) for line in PAGE.splitlines() if line.startswith("| ML-") for n in re.findall(r"ML-(\d+)", line)}
    assert listed == set(range(1, 28))
    tests = [*TESTING.glob("engine_*.py"), *(ROOT / "tests").rglob("test_*.py")]
    named = {int(n) for path in tests for n in re.findall(r"\bML-(\d+)", path.read_text())}
    assert named == listed, "a test names each"
    sources = [*(ROOT / "tests").rglob("test_*.py"), *TESTING.glob("engine_*.py")]
    text = "\n".join(path.read_text() for path in sources)
    files = {path.name for path in sources}
    for name in re.findall(r"\btest_\w+\b(?!\.py)", PAGE):
        assert f"def {name}(" in text, name
    for name in re.findall(r"\b(test_\w+\.py)", PAGE):
        assert name in files, name


#: The conformance list: upstream's tests, to be ported by id.
PORTED = {"P": 18, "M": 2, "E": 1, "B": 5, "S": 6, "C": 14, "T": 1, "F": 1, "I": 2}


def ids_in(text: str) -> set[str]:
    """Single ids and ranges such as B1-B5."""
    found = set()
    for letter, low, high in re.findall(r"\b([PMEBSCTFI])(\d+)(?:-\1(\d+))?\b", text):
        found |= {f"{letter}{n}" for n in range(int(low), int(high or low) + 1)}
    return found


def test_every_ported_test_of_the_original_has_its_line_and_is_named_by_a_test() -> None:
    wanted = {f"{letter}{n}" for letter, last in PORTED.items() for n in range(1, last + 1)}
    lines = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    assert {found for line in lines for found in ids_in(line)} == wanted
    sources = [
        *TESTING.glob("engine_*.py"),
        *(ROOT / "tests" / "unit" / "malamute").glob("*.py"),
        *Path(__file__).parent.glob("test_m*.py"),
    ]
    named = {found for path in sources if path != Path(__file__) for found in ids_in(path.read_text())}
    assert wanted <= named, sorted(wanted - named)


def test_every_metric_is_described() -> None:
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as broker:
        names = {metric.name.removeprefix("malamute_") for metric in broker.metrics()}
    described = set(re.findall(r"`(\w+)(?:\{\w+\})?`", PAGE.split("| metric ")[1].split("\n\n")[0]))
    assert names == described
