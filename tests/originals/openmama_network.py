"""A network of each bridge: OpenMAMA's programs on one side, the project on the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.status import MsgType
from mama_spark.openmama_wire.peer import PeerSettings
from mama_spark.openmama_wire.protocol.market_data import Stamp, stamped

from tests.support.openmama.originals import OriginalProcess, OriginalPrograms
from tests.support.ports import lasting_port


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


def capture(path: Path, symbols: tuple[str, ...], numbers: int) -> Path:
    """A capture of so many messages of each symbol, numbered from 1."""
    with path.open("wb") as file:
        for number in range(1, numbers + 1):
            for symbol in symbols:
                msg = MamaMsg()
                msg.add_f64("wBidPrice", 237, 100.0 + number)
                kind = MsgType.INITIAL if number == 1 else MsgType.UPDATE
                payload = encode(stamped(Stamp(kind, number=number, sender=4711, symbol=symbol), msg.fields))
                file.write(f"OM:oz:{symbol}:{len(payload)}".encode() + b"\x1d" + payload)
    return path
