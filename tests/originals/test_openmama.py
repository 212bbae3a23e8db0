"""OpenMAMA's C programs and the project, each way, over both framings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from mama_spark.bridges.memory.bridge import MemoryBroker
from mama_spark.bridges.openmama import OpenMamaBridge, OpenMamaSettings
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.status import MsgStatus
from mama_spark.message import MessageBatch
from mama_spark.openmama_wire.peer import PeerPresence, PeerSettings
from mama_spark.openmama_wire.protocol.dictionary import parse_dictionary
from mama_spark.openmama_wire.protocol.frames import FrameType
from mama_spark.openmama_wire.protocol.market_data import Stamp, stamped
from mama_spark.options.window import WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.services.openmama_source import SourceRules
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, peer
from tests.support.openmama.originals import PREFIX, OriginalPrograms
from tests.support.openmama.source import MarketDataLab
from tests.support.ports import lasting_port

pytestmark = pytest.mark.originals

N = 2000
REQUESTS = "MAMA_INBOUND_TOPIC"  #: which mamapublisherc listens at, and mamainboxc asks, by themselves
LISTEN = ("-S", "OM", "-s", "IBM", "-B", "-I", "-shutdown", "100")


class Network:
    """A naming network with OZ's own name server."""

    def __init__(self, programs: OriginalPrograms, port: int) -> None:
        self.programs, self.url = programs, f"oz://127.0.0.1:{port}"


@pytest.fixture
def oz(tmp_path: Path) -> Iterator[Network]:
    port = lasting_port()
    programs = OriginalPrograms(tmp_path, "oz", naming=port)
    with programs.run("nsd", "-i", "127.0.0.1", "-p", str(port)) as nsd:
        nsd.until("running at")
        yield Network(programs, port)


@pytest.fixture
def log() -> Iterator[str]:
    name = uuid4().hex
    MemoryBroker.get(name)
    yield name
    MemoryBroker.forget(name)


def row(n: int) -> bytes:
    msg = MamaMsg()
    msg.add_i32("wNumber", 9001, n)
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


# --- publish and subscribe ---------------------------------------------------------------------------------------


@pytest.mark.spec("OW9", "OW26")
def test_a_task_reaches_mamalistenc_whole_and_in_order(oz: Network) -> None:
    with oz.programs.mama("mamalistenc", "oz", *LISTEN) as listener:
        flights = publish(PeerSettings.from_urls([oz.url]))
        assert all((f.state == np.uint8(FlightState.ACKED)).all() for f in flights)
        listener.until("wNumber", N)
        assert numbers(listener.end()) == list(range(N))


@pytest.mark.spec("OW9")
def test_a_task_reaches_mamalistenc_of_the_older_bridge(tmp_path: Path) -> None:
    data, requests = lasting_port(), lasting_port()
    programs = OriginalPrograms(tmp_path, "classic", data=data, requests=requests)
    with programs.mama("mamalistenc", "sub", *LISTEN) as listener:
        publish(PeerSettings.from_urls([f"zmq://127.0.0.1:{data}?bind=true"]).without_receiving())
        listener.until("wNumber", N)
        assert numbers(listener.end()) == list(range(N))


@pytest.mark.spec("OW1", "OW25", "OW31")
def test_mamapublisherc_is_read_and_known_by_name(oz: Network) -> None:
    with peer(oz.url) as one:
        one.subscribe("OM.IBM")
        watched = Watched(one)
        with oz.programs.mama("mamapublisherc", "oz", "-s", "OM.IBM", "-i", "0.05", "-c", "400"):
            watched.until(lambda: len(watched.of(one).frames) >= 5, "messages arrive")
        messages = [decode(f.frame.payload) for f in watched.of(one).frames]
        got = [m.get("MdSeqNum") for m in messages]
        assert got == list(range(got[0], got[0] + len(got)))
        assert [p.frame.program for p in watched.of(one).peers] == ["mamapublisherc"]


@pytest.mark.spec("OW31")
def test_a_program_that_ends_in_order_takes_its_leave(oz: Network) -> None:
    with peer(oz.url) as one, oz.programs.mama("mamalistenc", "oz", *LISTEN[:-1], "2"):
        watched = Watched(one)
        watched.until(lambda: len(watched.of(one).peers) == 2, "it comes and goes")
        assert [(p.frame.program, p.presence, p.orderly) for p in watched.of(one).peers] == [
            ("mamalistenc", PeerPresence.ONLINE, False), ("mamalistenc", PeerPresence.OFFLINE, True)
        ]  # fmt: skip


@pytest.mark.spec("OW1")
def test_mamapublisherc_of_the_older_bridge_is_read(tmp_path: Path) -> None:
    data, requests = lasting_port(), lasting_port()
    programs = OriginalPrograms(tmp_path, "classic", data=data, requests=requests)
    with peer(f"zmq://127.0.0.1:{data}?bind=true", receiver=True) as one:
        one.subscribe("OM.IBM")
        watched = Watched(one)
        with programs.mama("mamapublisherc", "pub", "-s", "OM.IBM", "-i", "0.05", "-c", "100"):
            watched.until(lambda: len(watched.of(one).frames) >= 5, "messages arrive")
        assert one.counters.malformed == 0


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("OW13")
def test_mamainboxc_is_answered(oz: Network) -> None:
    with peer(oz.url) as one:
        one.subscribe("OM.IBM")
        with oz.programs.mama("mamainboxc", "oz", "-s", "OM.IBM") as asking:
            watched, answered = Watched(one), 0

            def answer() -> bool:
                nonlocal answered
                for got in watched.of(one).frames[answered:]:
                    answered += 1
                    if got.frame.type is FrameType.REQUEST:
                        one.reply(got.frame, row(answered))
                return asking.output().count("wNumber") >= 3

            watched.until(answer, "it gets replies")


@pytest.mark.spec("OW13")
def test_mamapublisherc_answers_requests(oz: Network) -> None:
    with peer(oz.url) as one, oz.programs.mama("mamapublisherc", "oz", "-s", "OM.IBM", "-i", "0.2", "-c", "500"):
        watched = Watched(one)
        watched.until(lambda: one.wanted(REQUESTS), "it subscribes to requests")
        wanted = [one.request(REQUESTS, row(n)) for n in range(3)]
        watched.until(lambda: len(watched.of(one).frames) >= 3, "its replies arrive")
        assert [f.inbox for f in watched.of(one).frames] == wanted


# --- market data -------------------------------------------------------------------------------------------------


def lab_of(tmp_path: Path, log: str, url: str) -> MarketDataLab:
    dictionary = parse_dictionary((PREFIX / "config" / "data.dict").read_text(encoding="latin-1"))
    rules = SourceRules(
        [("BADSYM", MsgStatus.BAD_SYMBOL), ("NOENT", MsgStatus.NOT_ENTITLED), ("NOPERM", MsgStatus.NOT_PERMISSIONED),
         ("TIMEO", MsgStatus.TIMEOUT)], dictionary=dictionary,
    )  # fmt: skip
    lab = MarketDataLab(tmp_path, log, url, rules, name="OM")
    lab.store_json("IBM", b'{"wBidPrice":100.25,"wAskPrice":100.5,"wBidSize":7,"wAskSize":9}')
    return lab


@pytest.mark.spec("OW16", "OW17", "OW23")
def test_images_updates_refusals_and_the_dictionary_satisfy_mamalistenc(oz: Network, tmp_path: Path, log: str) -> None:
    lab = lab_of(tmp_path, log, oz.url)
    lab.start()
    try:
        eventually(lambda: lab.served(1), "the record is served")
        symbols = tmp_path / "symbols"
        symbols.write_text("IBM\nBADSYM\nNOENT\nNOPERM\nTIMEO\nXXX\n")
        with oz.programs.mama("mamalistenc", "oz", "-S", "OM", "-f", str(symbols), "-shutdown", "100") as listener:
            listener.until("Type: INITIAL")
            for n in range(10):
                lab.store_json("IBM", b'{"wBidPrice":%d.5}' % n)
            listener.until("Type: UPDATE", 10)
            listener.until("An error occurred", 5)
            output = listener.end()
        refused = dict(re.findall(r"An error occurred creating subscription for (\w+): (\w+)", output))
        assert refused == {
            "BADSYM": "BAD_SYMBOL", "NOENT": "STATUS_NOT_ENTITLED", "XXX": "STATUS_NOT_FOUND",
            "TIMEO": "STATUS_TIMEOUT", "NOPERM": "MAMA_STATUS_NOT_PERMISSIONED",
        }  # fmt: skip
        assert "STALE" not in output
        with oz.programs.mama("mamalistenc", "oz", "-S", "OM", "-s", "IBM", "-1", "-shutdown", "100") as snapshot:
            snapshot.until("Type: INITIAL")
    finally:
        lab.stop()


@pytest.mark.spec("OW23")
def test_quoteticker_shows_quotes_by_our_dictionary(oz: Network, tmp_path: Path, log: str) -> None:
    lab = lab_of(tmp_path, log, oz.url)
    lab.start()
    try:
        with oz.programs.mama("quoteticker", "oz", "-S", "OM", "-s", "IBM") as ticker:
            eventually(lambda: ("SUBSCRIBED", "IBM") in lab.callbacks(), "it subscribes")
            for n in range(5):
                lab.store_json("IBM", b'{"wBidPrice":%d.5,"wBidSize":7}' % (200 + n))
            ticker.until("204.5")
    finally:
        lab.stop()


@pytest.mark.spec("OW18")
def test_a_skipped_number_is_healed_by_one_recap(oz: Network, tmp_path: Path, log: str) -> None:
    lab = lab_of(tmp_path, log, oz.url)
    lab.start()
    try:
        with oz.programs.mama("mamalistenc", "oz", "-S", "OM", "-s", "IBM", "-B", "-shutdown", "100") as listener:
            listener.until("Type: INITIAL")
            lab.store_json("IBM", b'{"wBidPrice":1.5}')
            listener.until("Type: UPDATE")
            lab.server._source.topics["IBM"].number += 1
            lab.store_json("IBM", b'{"wBidPrice":2.5}')
            listener.until("Type: RECAP")
            lab.store_json("IBM", b'{"wBidPrice":3.5}')
            listener.until("3.5")
            output = listener.end()
        assert output.count("Type: RECAP") == 1
        qualities = re.findall(r"Quality changed to (\w+)", output)
        assert qualities[-2:] == ["STALE", "OK"]
        assert ("onRequest", "IBM") in lab.callbacks()
    finally:
        lab.stop()


@pytest.mark.spec("OW19")
def test_a_subscription_without_image_reaches_the_callback(oz: Network, tmp_path: Path, log: str) -> None:
    lab = lab_of(tmp_path, log, oz.url)
    lab.start()
    try:
        eventually(lambda: lab.served(1), "the record is served")
        with oz.programs.mama("mamalistenc", "oz", *LISTEN) as listener:
            eventually(lambda: ("onRequest", "IBM") in lab.callbacks(), "the subscription arrives")
            lab.store_json("IBM", b'{"wBidPrice":1.5}')
            listener.until("Type: UPDATE")
            assert "Type: INITIAL" not in listener.output()
    finally:
        lab.stop()


@pytest.mark.spec("OW21")
def test_old_subscribers_get_updates_after_a_restart_without_a_gap(oz: Network, tmp_path: Path, log: str) -> None:
    lab = lab_of(tmp_path, log, oz.url)
    lab.start()
    try:
        with oz.programs.mama("mamalistenc", "oz", "-S", "OM", "-s", "IBM", "-B", "-shutdown", "100") as listener:
            listener.until("Type: INITIAL")
            lab.store_json("IBM", b'{"wBidPrice":1.5}')
            listener.until("Type: UPDATE")
            lab.stop()
            lab.start()
            eventually(lambda: ("SUBSCRIBED", "IBM") in lab.callbacks(), "the subscription comes back")
            lab.store_json("IBM", b'{"wBidPrice":2.5}')
            listener.until("Type: UPDATE", 2)
            assert "STALE" not in listener.end()
    finally:
        lab.stop()


# --- our name server ---------------------------------------------------------------------------------------------


@pytest.mark.spec("OW28")
def test_our_name_server_brings_two_real_programs_together(tmp_path: Path) -> None:
    port = lasting_port()
    programs = OriginalPrograms(tmp_path, "oz", naming=port)
    ours = subprocess.Popen([sys.executable, "-m", "mama_spark.cli", "nsd", "-p", str(port)], stdout=subprocess.PIPE)
    assert ours.stdout is not None
    try:
        assert b"name server at" in ours.stdout.readline()
        with programs.mama("mamalistenc", "oz", *LISTEN) as listener:
            listener.until("Created subscription")
            with programs.mama("mamapublisherc", "oz", "-s", "OM.IBM", "-i", "0.1", "-c", "300"):
                listener.until("MdSeqNum", 5)
    finally:
        ours.terminate()
        assert ours.wait(30) == 0
        ours.stdout.close()
