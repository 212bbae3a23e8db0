"""OpenMAMA's C programs and the project, each way, over both framings."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.status import SubscriptionMsgType
from mama_spark.openmama.wire.dictionary import dictionary_of
from mama_spark.openmama.wire.frames import FrameType
from mama_spark.openmama.wire.market_data import (
    DICTIONARY,
    DICTIONARY_SYMBOL,
    NORMAL,
    MarketDataRequest,
    dictionary_topic,
    request_message,
    subscription_topic,
)
from mama_spark.openmama.wire.naming import PeerPresence
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.publishing.window.flight import FlightState
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, peer
from tests.support.openmama.originals import OriginalPrograms
from tests.support.openmama.recorder import RecordedLog
from tests.support.ports import lasting_port

from .openmama_network import LISTEN, EitherNetwork, N, lab_of, network, numbers, publish, replay, row

pytestmark = pytest.mark.originals

REQUESTS = "MAMA_INBOUND_TOPIC"  #: which mamapublisherc listens at, and mamainboxc asks, by themselves


def market_data_request(asked: str) -> tuple[str, bytes]:
    """Topic and payload of a request to capturereplayc."""
    if asked == "the dictionary":
        dictionary = MarketDataRequest(DICTIONARY_SYMBOL, DICTIONARY, SubscriptionMsgType.DDICT_SNAPSHOT)
        return dictionary_topic("WOMBAT"), encode(request_message(dictionary))
    snapshot = MarketDataRequest("IBM", NORMAL, SubscriptionMsgType.SNAPSHOT)
    return subscription_topic("OM"), encode(request_message(snapshot))


def ask(one: OpenMamaPeer, watched: Watched, requests: list[tuple[str, bytes]]) -> list[int]:
    """Ask again each second, until all are answered: a reply is lost before our subscription to its inbox has arrived
    at the other side. The numbers of the inboxes."""
    wanted, asked = [one.request(*request) for request in requests], time.monotonic()

    def answered() -> bool:
        nonlocal asked
        missing = set(wanted) - {found.inbox for found in watched.of(one).frames}
        if missing and time.monotonic() >= asked + 1.0:
            asked = time.monotonic()
            for number, request in zip(wanted, requests, strict=True):
                if number in missing:
                    one.request(*request, number)
        return not missing

    watched.until(answered, "its replies arrive")
    assert {found.inbox for found in watched.of(one).frames} == set(wanted)
    return wanted


# --- publish and subscribe ---------------------------------------------------------------------------------------


@pytest.mark.spec("OW9", "OW26")
def test_a_task_reaches_mamalistenc_whole_and_in_order(either: EitherNetwork) -> None:
    with either.listening() as listener:
        flights = publish(either.sink)
        assert all((f.state == np.uint8(FlightState.ACKED)).all() for f in flights)
        listener.until("wNumber", N)
        assert numbers(listener.end()) == list(range(N))


@pytest.mark.spec("OW1", "OW25", "OW31")
def test_mamapublisherc_is_read(either: EitherNetwork) -> None:
    """And known by name, where the network has naming."""
    with peer(either.recorder_url, receiver=True) as one:
        one.subscribe("OM.IBM")
        watched = Watched(one)
        with either.programs.mama("mamapublisherc", either.sender, "-s", "OM.IBM", "-i", "0.05", "-c", "400"):
            watched.until(lambda: len(watched.of(one).frames) >= 5, "messages arrive")
        messages = [decode(f.frame.payload) for f in watched.of(one).frames]
        got = [m.get("MdSeqNum") for m in messages]
        assert got == list(range(got[0], got[0] + len(got)))
        assert one.counters.malformed == 0
        known = ["mamapublisherc"] if either.framing == "oz" else []
        assert [p.frame.program for p in watched.of(one).peers] == known


@pytest.mark.spec("OW31")
def test_a_program_that_ends_in_order_takes_its_leave(oz: EitherNetwork) -> None:
    with peer(oz.server_url) as one, oz.programs.mama("mamalistenc", "oz", *LISTEN[:-1], "2"):
        watched = Watched(one)
        watched.until(lambda: len(watched.of(one).peers) == 2, "it comes and goes")
        assert [(p.frame.program, p.presence, p.orderly) for p in watched.of(one).peers] == [
            ("mamalistenc", PeerPresence.ONLINE, False), ("mamalistenc", PeerPresence.OFFLINE, True)
        ]  # fmt: skip


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("OW13", "OW15")
def test_mamainboxc_is_answered(either: EitherNetwork) -> None:
    with peer(either.server_url) as one:
        one.subscribe("OM.IBM")
        with either.programs.mama("mamainboxc", either.receiver, "-s", "OM.IBM") as asking:
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
def test_mamapublisherc_answers_requests(oz: EitherNetwork) -> None:
    with peer(oz.server_url) as one, oz.programs.mama("mamapublisherc", "oz", "-s", "OM.IBM", "-i", "0.2", "-c", "500"):
        watched = Watched(one)
        watched.until(lambda: one.wanted(REQUESTS), "it subscribes to requests")
        ask(one, watched, [(REQUESTS, row(n)) for n in range(3)])


# --- market data -------------------------------------------------------------------------------------------------


@pytest.mark.spec("OW16", "OW17", "OW23")
def test_images_updates_refusals_and_the_dictionary_satisfy_mamalistenc(
    either: EitherNetwork, tmp_path: Path, log: RecordedLog
) -> None:
    lab = lab_of(tmp_path, log.name, either.server_url)
    with lab.running():
        eventually(lambda: lab.served(1), "the record is served")
        symbols = tmp_path / "symbols"
        symbols.write_text("IBM\nBADSYM\nNOENT\nNOPERM\nTIMEO\nXXX\n")
        with either.listening("-f", str(symbols)) as listener:
            listener.until("Type: INITIAL")
            for n in range(10):
                lab.store_json("IBM", b'{"wBidPrice":%d.5}' % n)
            listener.until("Type: UPDATE", 10)
            listener.until("An error occurred", 5)
            output = listener.end(signal.SIGKILL)
        refused = dict(re.findall(r"An error occurred creating subscription for (\w+): (\w+)", output))
        assert refused == {
            "BADSYM": "BAD_SYMBOL", "NOENT": "STATUS_NOT_ENTITLED", "XXX": "STATUS_NOT_FOUND",
            "TIMEO": "STATUS_TIMEOUT", "NOPERM": "MAMA_STATUS_NOT_PERMISSIONED",
        }  # fmt: skip
        assert "STALE" not in output
        with either.listening("-s", "IBM", "-1") as snapshot:
            snapshot.until("Type: INITIAL")


@pytest.mark.spec("OW23")
def test_quoteticker_shows_quotes_by_our_dictionary(either: EitherNetwork, tmp_path: Path, log: RecordedLog) -> None:
    lab = lab_of(tmp_path, log.name, either.server_url)
    with lab.running(), either.programs.mama("quoteticker", either.receiver, "-S", "OM", "-s", "IBM") as ticker:
        eventually(lambda: ("SUBSCRIBED", "IBM") in lab.callbacks(), "it subscribes")
        for n in range(5):
            lab.store_json("IBM", b'{"wBidPrice":%d.5,"wBidSize":7}' % (200 + n))
        ticker.until("204.5")


@pytest.mark.spec("OW18")
def test_a_skipped_number_is_healed_by_one_recap(either: EitherNetwork, tmp_path: Path, log: RecordedLog) -> None:
    lab = lab_of(tmp_path, log.name, either.server_url)
    with lab.running():
        with either.listening("-s", "IBM", "-B") as listener:
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


@pytest.mark.spec("OW19")
def test_a_subscription_without_image_reaches_the_callback(
    either: EitherNetwork, tmp_path: Path, log: RecordedLog
) -> None:
    lab = lab_of(tmp_path, log.name, either.server_url)
    with lab.running():
        eventually(lambda: lab.served(1), "the record is served")
        with either.listening() as listener:
            eventually(lambda: ("onRequest", "IBM") in lab.callbacks(), "the subscription arrives")
            lab.store_json("IBM", b'{"wBidPrice":1.5}')
            listener.until("Type: UPDATE")
            assert "Type: INITIAL" not in listener.output()


@pytest.mark.spec("OW21")
def test_old_subscribers_get_updates_after_a_restart_without_a_gap(
    either: EitherNetwork, tmp_path: Path, log: RecordedLog
) -> None:
    lab = lab_of(tmp_path, log.name, either.server_url)
    with lab.running(), either.listening("-s", "IBM", "-B") as listener:
        listener.until("Type: INITIAL")
        lab.store_json("IBM", b'{"wBidPrice":1.5}')
        listener.until("Type: UPDATE")
        lab.stop()
        lab.start()
        eventually(lambda: ("SUBSCRIBED", "IBM") in lab.callbacks(), "the subscription comes back")
        lab.store_json("IBM", b'{"wBidPrice":2.5}')
        listener.until("Type: UPDATE", 2)
        assert "STALE" not in listener.end()


@pytest.mark.spec("OW13")
def test_capturereplayc_answers_a_snapshot_and_the_dictionary(oz: EitherNetwork, tmp_path: Path) -> None:
    with peer(oz.server_url) as one, oz.programs.mama("capturereplayc", "oz", *replay(tmp_path)):
        watched = Watched(one)
        requests = [market_data_request(asked) for asked in ("a snapshot", "the dictionary")]
        watched.until(lambda: all(one.wanted(topic) for topic, _ in requests), "it subscribes to requests")
        wanted = ask(one, watched, requests)
        answers = {found.inbox: decode(found.frame.payload) for found in watched.of(one).frames}
        assert answers[wanted[0]].get("wBidPrice") > 100
        assert len(dictionary_of(answers[wanted[1]])) > 1000


# --- the older bridge as published: what cannot be asked of its programs ---------------------------------------------


@pytest.mark.spec("OW15")
@pytest.mark.parametrize("asked", ["a snapshot", "the dictionary", "an inbox"])
def test_a_request_ends_programs_of_the_older_bridge(tmp_path: Path, asked: str) -> None:
    """So nothing can show a snapshot, an image, the dictionary or a reply from them to us."""
    with network("zmq", tmp_path) as here, peer(f"{here.recorder_url}&allow_requests=true", receiver=True) as one:
        words = ("-s", "OM.IBM", "-i", "0.2", "-c", "5000")
        program, more = ("mamapublisherc", words) if asked == "an inbox" else ("capturereplayc", replay(tmp_path))
        topic, payload = (REQUESTS, row(1)) if asked == "an inbox" else market_data_request(asked)
        watched = Watched(one)
        with here.programs.mama(program, here.sender, *more) as running:
            watched.until(lambda: one.wanted(topic), "it subscribes to requests")
            one.request(topic, payload)
            watched.until(lambda: running.exit_code() is not None, "it ends")
            assert running.exit_code() == -signal.SIGSEGV


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
