"""A network of each bridge: OpenMAMA's programs on one side, the project on the other; and what its tests share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.status import MsgStatus, MsgType
from mama_spark.openmama.bridge import OpenMamaBridge, OpenMamaSettings
from mama_spark.openmama.source.market_data_source import SourceRules
from mama_spark.openmama.wire.dictionary import parse_dictionary
from mama_spark.openmama.wire.market_data import Stamp, stamped
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.testing.waiting import eventually

from tests.support.openmama.originals import PREFIX, OriginalProcess, OriginalPrograms
from tests.support.openmama.source import MarketDataLab
from tests.support.ports import lasting_port

N = 2000
LISTEN = ("-S", "OM", "-s", "IBM", "-B", "-I", "-shutdown", "100")
SYMBOLS = ("IBM", "MSFT")


class EitherNetwork:
    """Programs of one bridge, and where the project meets them.

    :ivar framing: ``oz``, with naming; or ``zmq``, direct
    :ivar sender, receiver: transport of programs that publish, and of others
    :ivar recorder_url: for a recorder; ``server_url``: for what is asked, a market data server
    :ivar sink: for a task
    :ivar nsd: OZ's name server, the last one that was started
    """

    def __init__(self, programs: OriginalPrograms, framing: str, naming: int, data: int, requests: int) -> None:
        self.programs, self.framing, self._naming = programs, framing, naming
        self.nsd: OriginalProcess | None = None
        if framing == "oz":
            self.sender = self.receiver = "oz"
            self.recorder_url = self.server_url = f"oz://127.0.0.1:{naming}"
            self.sink = PeerSettings.from_urls([self.recorder_url])
        else:
            self.sender, self.receiver = "pub", "sub"
            place = f"zmq://127.0.0.1:{data}?bind=true"
            self.recorder_url = f"{place}&incoming=tcp://127.0.0.1:{requests}&bind_incoming=true"
            self.server_url = self.recorder_url
            self.sink = PeerSettings.from_urls([place]).without_receiving()

    def listening(self, *words: str) -> AbstractContextManager[OriginalProcess]:
        """A running mamalistenc, with ``LISTEN`` unless other words are given."""
        given = ("-S", "OM", *words, "-shutdown", "100") if words else LISTEN
        return self.programs.mama("mamalistenc", self.receiver, *given)

    @contextmanager
    def name_server(self) -> Iterator[OriginalProcess]:
        """OZ's own one."""
        with self.programs.run("nsd", "-i", "127.0.0.1", "-p", str(self._naming)) as self.nsd:
            self.nsd.until("running at")
            yield self.nsd


@contextmanager
def network(framing: str, folder: Path) -> Iterator[EitherNetwork]:
    """With OZ's own name server, where the framing has naming."""
    naming, data, requests = lasting_port(), lasting_port(), lasting_port()
    bridge = "oz" if framing == "oz" else "classic"
    programs = OriginalPrograms(folder, bridge, naming=naming, data=data, requests=requests)
    one = EitherNetwork(programs, framing, naming, data, requests)
    if framing != "oz":
        yield one
        return
    with one.name_server():
        yield one


def row(n: int) -> bytes:
    msg = MamaMsg()
    msg.add(FieldType.I32, "wNumber", 9001, n)
    return encode(stamped(Stamp(), msg.fields))


def publish(settings: PeerSettings, during: Callable[[], object] = lambda: None, readers: int = 1) -> list[FlightBatch]:
    """As a task does it.

    :param during: called when half of the rows are given
    :param readers: that subscribe before the first row
    """
    finished: list[FlightBatch] = []
    bridge = OpenMamaBridge(OpenMamaSettings(settings, wait_for_subscribers=60.0))
    bridge.open()

    def wanted() -> bool:
        bridge.poll(0.05)
        table = bridge.peer.readers
        return table.readers(b"OM.IBM") + table.readers(b"OM.IBM\0") >= readers

    eventually(wanted, "the readers are there")
    publisher = BatchPublisher(bridge, WindowConfig(4096, 2048), on_finished=finished.append)
    publisher.start()
    try:
        publisher.put(MessageBatch.of(["OM.IBM"] * (N // 2), [row(n) for n in range(N // 2)]))
        during()
        publisher.put(MessageBatch.of(["OM.IBM"] * (N - N // 2), [row(n) for n in range(N // 2, N)]))
        publisher.drain()
    finally:
        publisher.stop()
        bridge.close()
    return finished


def numbers(output: str) -> list[int]:
    return [int(n) for n in re.findall(r"wNumber +\| +9001 \| +I32 \| (\d+)", output)]


def lab_of(tmp_path: Path, log: str, url: str) -> MarketDataLab:
    dictionary = parse_dictionary((PREFIX / "config" / "data.dict").read_text(encoding="latin-1"))
    rules = SourceRules(
        [("BADSYM", MsgStatus.BAD_SYMBOL), ("NOENT", MsgStatus.NOT_ENTITLED), ("NOPERM", MsgStatus.NOT_PERMISSIONED),
         ("TIMEO", MsgStatus.TIMEOUT)], dictionary=dictionary,
    )  # fmt: skip
    lab = MarketDataLab(tmp_path, log, url, rules, name="OM")
    lab.store_json("IBM", b'{"wBidPrice":100.25,"wAskPrice":100.5,"wBidSize":7,"wAskSize":9}')
    return lab


def capture(path: Path, symbols: tuple[str, ...], numbers: int) -> Path:
    """A capture of so many messages of each symbol, numbered from 1."""
    with path.open("wb") as file:
        for number in range(1, numbers + 1):
            for symbol in symbols:
                msg = MamaMsg()
                msg.add(FieldType.F64, "wBidPrice", 237, 100.0 + number)
                kind = MsgType.INITIAL if number == 1 else MsgType.UPDATE
                payload = encode(stamped(Stamp(kind, number=number, sender=4711, symbol=symbol), msg.fields))
                file.write(f"OM:oz:{symbol}:{len(payload)}".encode() + b"\x1d" + payload)
    return path


def replay(tmp_path: Path) -> tuple[str, ...]:
    """Arguments of capturereplayc: thirty messages of each symbol, again and again."""
    return ("-S", "OM", "-f", str(capture(tmp_path / "c.mplay", SYMBOLS, 30)), "-dictionary",
            str(PREFIX / "config" / "data.dict"), "-i", "0.05", "-r")  # fmt: skip
