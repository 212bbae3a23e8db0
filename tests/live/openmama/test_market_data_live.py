"""The market data server with subscribers that behave as real ones were seen to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, MamaPrice
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.status import MsgStatus
from mama_spark.memory.broker import MemoryBroker
from mama_spark.openmama.source.market_data_source import SourceRules
from mama_spark.openmama.source.source_state import SourceState
from mama_spark.openmama.wire.dictionary import DictionaryEntry
from mama_spark.openmama.wire.market_data import MarketDataRequest, request_message, subscription_topic
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, message, naming, peer, url_of
from tests.support.openmama.slow_reader import SlowReader
from tests.support.openmama.source import MarketDataLab
from tests.support.ports import lasting_port

RULES = SourceRules([("NO*", MsgStatus.NOT_ENTITLED)], dictionary=[DictionaryEntry(109, "bid", FieldType.PRICE)])


@pytest.fixture
def log() -> Iterator[str]:
    name = uuid4().hex
    MemoryBroker.get(name)
    yield name
    MemoryBroker.forget(name)


class ScriptedSubscriber:
    """Subscribes to a symbol, asks for its image, and keeps the messages in order of arrival."""

    def __init__(self, one: OpenMamaPeer) -> None:
        self.peer, self.watched = one, Watched(one)

    def subscribe(self, symbol: str, message: int = 0) -> None:
        self.peer.subscribe(f"S.{symbol}")
        self.ask(subscription_topic("S"), MarketDataRequest(symbol, 0, message))

    def ask(self, topic: str, request: MarketDataRequest) -> None:
        self.watched.until(lambda: self.peer.wanted(topic), "the publisher subscribes to requests")
        self.peer.request(topic, encode(request_message(request)))

    def messages(self) -> list[MamaMsg]:
        return [decode(f.frame.payload) for f in self.watched.of(self.peer).frames]

    def numbers(self) -> list[tuple[Any, Any]]:
        return [(m.get("MdMsgType"), m.get("MdSeqNum")) for m in self.messages()]

    def until(self, n: int, also: Callable[[], Any] = lambda: None) -> None:
        def there() -> bool:
            also()
            return len(self.watched.of(self.peer).frames) >= n

        self.watched.until(there, f"{n} messages")


@pytest.mark.spec("OW16", "OW20")
def test_an_image_then_updates_and_a_snapshot(tmp_path: Path, log: str) -> None:
    with naming() as server, peer(url_of(server)) as one:
        lab = MarketDataLab(tmp_path, log, url_of(server), RULES)
        lab.store("A", x=1)
        lab.store("A", y=2)
        with lab.running():
            eventually(lambda: lab.served(2), "the records are served")
            subscriber = ScriptedSubscriber(one)
            subscriber.subscribe("A")
            subscriber.until(1)
            lab.store("A", x=3)
            lab.store_json("A", b'{"bid": 100.5}')
            subscriber.until(3)
            assert subscriber.numbers() == [(1, 2), (0, 3), (0, 4)]
            image, *_, last = subscriber.messages()
            assert (image.get("x"), image.get("y"), image.get("wIssueSymbol")) == (1, 2, "A")
            assert last.field("bid") == ("bid", 109, FieldType.PRICE, MamaPrice(100.5))
            subscriber.ask(subscription_topic("S"), MarketDataRequest("A", 0, 1))
            subscriber.until(4)
            assert (subscriber.numbers()[-1], subscriber.messages()[-1].get("x")) == ((1, 4), 3)
            eventually(lambda: ("SUBSCRIBED", "A") in lab.callbacks(), "the subscription is seen")
            assert lab.callbacks().count(("onRequest", "A")) == 2
        assert lab.callbacks()[-1] == ("onDestroy", "A")


@pytest.mark.spec("OW21")
def test_an_orderly_end_waits_for_subscribers_and_serves_again_what_they_did_not_take(tmp_path: Path, log: str) -> None:
    number, port = 100, lasting_port()
    filling = "x" * 80_000  # 8 MB together, more than the system takes for a connection
    lab = MarketDataLab(tmp_path, log, f"oz://127.0.0.1:{port}?mode=direct&bind=true&incoming=tcp://*:0", RULES)

    def serve(first: int) -> None:
        """Publish as many records."""
        eventually(lambda: lab.server._peer.wanted("S.A"), "it subscribes")
        before = lab.server.counts["messages"]
        for n in range(number):
            lab.store("A", x=first + n, filling=filling)
        eventually(lambda: lab.served(before + number), "all are published")

    def values(reader: SlowReader, n: int) -> list[tuple[int, int]]:
        """Number and value of the next messages."""
        return [(m.get("MdSeqNum"), m.get("x")) for m in reader.messages(n)]

    def saved() -> tuple[int, int]:
        state = SourceState(tmp_path / "state", "S")
        state.close()
        return state.at.served, state.wanted

    lab.start()
    with SlowReader(port, "S.A") as reader:
        serve(1)
        end = threading.Thread(target=lab.stop)
        end.start()
        assert values(reader, number) == [(1 + n, 1 + n) for n in range(number)]
        end.join(60)
    assert saved() == (number, 1)
    assert not lab.warnings
    lab.settings = replace(lab.settings, linger=0.2)
    lab.start()
    with SlowReader(port, "S.A"):  # the source waits for it: as many were there before
        serve(1 + number)
        lab.stop()
    served, _ = saved()
    assert number <= served < 2 * number
    again = f"records {served + 1} to {2 * number} are not counted, and are served again by the next start"
    assert again in lab.warnings[-1]
    assert lab.server.counts["records"] == served - number
    lab.start()
    with SlowReader(port, "S.A") as reader:
        assert values(reader, 2 * number - served) == [(n, n) for n in range(served + 1, 2 * number + 1)]
        lab.stop()
    assert saved() == (2 * number, 1)


def test_records_that_are_no_messages_and_other_topics_are_counted(tmp_path: Path, log: str) -> None:
    with naming() as server:
        lab = MarketDataLab(tmp_path, log, url_of(server), RULES)
        lab.store_json("A", b"nothing")
        lab.name = "T"
        lab.store("A", x=1)
        lab.name = "S"
        lab.store("A", x=1)
        with lab.running():
            eventually(lambda: lab.served(1), "the good record is served")
        assert dict(lab.server.counts) == {"records": 3, "bad records": 1, "other topics": 1, "messages": 1}
        assert lab.warnings == ["record 1 (S.A) is not served: neither an OMNM message nor a JSON object"]


def test_over_zmq_directly(tmp_path: Path, log: str) -> None:
    """Subscribers there want no image: a request would end real publishers."""
    data, requests = lasting_port(), lasting_port()
    sockets = f"zmq://127.0.0.1:{data}?incoming=tcp://127.0.0.1:{requests}"
    lab = MarketDataLab(tmp_path, log, f"{sockets}&bind=true&bind_incoming=true", RULES)
    with lab.running(), peer(sockets, receiver=True) as one:
        subscriber = ScriptedSubscriber(one)
        one.subscribe("S.A")
        topic = subscription_topic("S")
        subscriber.watched.until(lambda: one.wanted(topic) and lab.server._peer.wanted("S.A"), "both are there")
        one.publish(topic, encode(request_message(MarketDataRequest("A", 0, 0))))
        eventually(lambda: ("onNewRequest", "A") in lab.callbacks(), "the request arrives")
        subscriber.until(1)  # the refusal, to all: nobody has sent an inbox
        lab.store("A", x=1)
        subscriber.until(2)
        assert subscriber.messages()[1].get("x") == 1
        one.publish("S.A", message(x=1))
