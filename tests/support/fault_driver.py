"""How the live tests drive a publisher through a fault, and what they hold it to afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import EVENT, FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, FlightCounters, messages_of
from mama_spark.testing.oracle import Outcome, Verdict, conserve
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.nats.nats_servers import Admin


class Driver:
    """A publisher over a real bridge, all of whose outcomes are kept."""

    def __init__(
        self,
        url: str,
        *,
        window: int = 1024,
        wait_timeout: float = 2.0,
        deadline: float = 60.0,
        attempts: int | None = None,
        resend_uncertain: bool = True,
        on_outage: OnOutage = OnOutage.FAIL,
        **settings: Any,
    ) -> None:
        self.bridge = NatsBridge(
            NatsSettings(
                tuple(url.split(",")),
                max_in_flight=window,
                wait_timeout=wait_timeout,
                retry_deadline=deadline,
                **settings,
            )
        )
        self.policy = WindowConfig(
            max_in_flight=window,
            refill_allowed_at=window // 2,
            wait_timeout=wait_timeout,
            retry=RetryPolicy.doubling(0.05, 1.0, deadline, attempts),
            resend_uncertain=resend_uncertain,
            ordered=bool(settings.get("ordered")),
        )
        self.config = BatchConfig(on_outage)
        self.outcomes: list[Outcome] = []
        self.reasons: list[str] = []
        self.sent = 0
        self.publisher: BatchPublisher | None = None

    def __enter__(self) -> Driver:
        self.bridge.open()
        self.publisher = BatchPublisher(self.bridge, self.policy, on_finished=self._finished, config=self.config)
        self.publisher.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.publisher is not None
        self.publisher.stop()
        self.bridge.close()

    @property
    def counters(self) -> FlightCounters:
        assert self.publisher is not None
        return self.publisher.counters

    def put(self, topics: list[str], n: int, size: int = 100, headers: Any = None) -> None:
        """``n`` messages, each different, over ``topics``."""
        assert self.publisher is not None
        numbers = range(self.sent, self.sent + n)
        payloads = [b"%08d" % i + b"x" * (size - 8) for i in numbers]
        ids = [f"m-{i}" for i in numbers] if self.bridge.settings.dedup else None
        names = [topics[i % len(topics)] for i in numbers]
        self.sent += n
        self.publisher.put(MessageBatch.of(names, payloads, headers, ids))

    def begin(self, topics: list[str], n: int) -> None:
        """:meth:`put`, and wait until all is acknowledged, however long that takes: time-outs are for what follows."""
        assert self.publisher is not None
        window = self.publisher.window
        patient = RetryPolicy.doubling(0.05, 1.0, TIMEOUT)
        window.policy = replace(self.policy, wait_timeout=TIMEOUT, retry=patient)
        self.put(topics, n)
        eventually(lambda: self.counters.acked == self.sent, "the first are acknowledged")
        window.policy = self.policy

    def drain(self) -> None:
        assert self.publisher is not None
        self.publisher.drain()

    def _finished(self, flights: FlightBatch) -> None:
        batch = messages_of(flights)
        topics, payloads = batch.topics.to_pylist(), batch.payloads.to_pylist()
        for i in range(flights.n):
            event = EVENT[FlightState(int(flights.state[i]))]
            error = flights.errors.get(i)
            self.outcomes.append(
                Outcome(topics[i], payloads[i], event, bool(flights.doubt[i]), int(flights.sequence[i]))
            )
            if event != "acked":
                self.reasons.append(str(error))

    def events(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for o in self.outcomes:
            found[o.event] = found.get(o.event, 0) + 1
        return found

    def conserved(self, admin: Admin, stream: str = "S", *, exactly_once: bool = True) -> Verdict:
        """The oracle over what the stream holds; then one fresh message must get through."""
        held = [(m.sequence, m.topic, m.payload) for m in admin.messages(stream)]
        return conserve(self.outcomes, held, sent=self.sent, exactly_once=exactly_once).raise_faults()

    def in_order(self, admin: Admin, stream: str = "S") -> None:
        payloads = [m.payload[:8] for m in admin.messages(stream)]
        assert payloads == sorted(payloads), "stored out of order"


def fresh_message_gets_through(url: str, topic: str, **settings: Any) -> None:
    """Whatever happened: the middleware is alive and a new publisher works."""
    with Driver(url, **settings) as driver:
        driver.put([topic], 1)
        driver.drain()
        assert driver.events() == {"acked": 1}, driver.reasons
