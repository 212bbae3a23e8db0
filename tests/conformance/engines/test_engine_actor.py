"""A stream is an actor: one thread, commands in, reports out (ML-04 to ML-11), whatever its engine does with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import zmq
from mama_spark.services.malamute_broker.engines import Delivery
from mama_spark.services.malamute_broker.engines.engine_handle import CommandDone, ReportSocket
from mama_spark.testing.engine_setup import TIMEOUT
from mama_spark.testing.engine_suite import EngineKind, EngineSetup, Ref
from mama_spark.testing.waiting import until


@pytest.fixture
def site() -> Iterator[EngineSetup]:
    site = EngineSetup(EngineKind("simple"), own_thread=True)
    yield site
    site.close()


@pytest.mark.spec("ML-09", "ML-11", "E1")
def test_start_verbose_destroy(site: EngineSetup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mama_spark")
    stream = site.stream()
    stream.verbose()
    site.compile(stream, Ref("r"), b"x")
    site.publish(stream, Ref("w"), b"x")
    for name in ("COMPILE", "ACCEPT"):
        assert name in caplog.text


@pytest.mark.spec("ML-10")
def test_a_stream_that_was_never_used_ends(site: EngineSetup) -> None:
    site.stream(traffic=False).destroy(TIMEOUT)
    assert site.threads() == []


@pytest.mark.spec("ML-05", "ML-08", "ML-10")
def test_an_actor_has_one_thread_which_term_ends_behind_what_was_said_before(site: EngineSetup) -> None:
    stream, r = site.stream(b"of its own"), Ref("r")
    assert site.threads() == ["stream-of its own"], "it is there when the constructor returns"
    stream.compile(r, b"")
    stream.flush()
    stream._frames(b"$TERM")
    assert site.answers(stream) == [CommandDone()]
    until(lambda: not site.threads())


@pytest.mark.spec("ML-04", "ML-16", "ML-17")
def test_deliveries_come_over_a_push_socket_to_the_pull_socket_that_traffic_named(site: EngineSetup) -> None:
    """Any PULL on ``inproc://`` hears from each stream when there is something to take."""
    pull = site.context.socket(zmq.PULL)
    try:
        pull.bind("inproc://of-this-test")
        streams = {name: site.stream(name, traffic=False) for name in (b"one", b"two")}
        for name, stream in streams.items():
            stream.traffic("inproc://of-this-test")
            stream.compile(name, b"")
            stream.accept(Ref("w"), b"", b"subject", [name])
            stream.sync(Ref("w"))
            stream.flush()
        found: dict[bytes, list[object]] = {name: [] for name in streams}
        while not all(any(isinstance(one, Delivery) for one in said) for said in found.values()):
            assert pull.poll(int(TIMEOUT * 1000)), found
            name = pull.recv()
            found[name] += streams[name].reports.popleft()
        for name, said in found.items():
            (delivery,) = [one for one in said if isinstance(one, Delivery)]
            assert (delivery.client, delivery.content) == (name, [name]), "routed by the reference that it carries"
    finally:
        pull.close(0)


@pytest.mark.spec("ML-18")
def test_traffic_is_idempotent_and_goes_to_the_first_endpoint(site: EngineSetup) -> None:
    stream, r = site.stream(), Ref("r")
    site.compile(stream, r, b"")
    other = ReportSocket(site.context)
    for endpoint in (site.traffic.endpoint, other.endpoint):
        stream.traffic(endpoint)
        assert site.answers(stream) == [CommandDone()]
    assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")]
    assert other.take(0.0) is None
    other.close()


def test_unknown_commands_are_logged_and_nothing_else(site: EngineSetup, caplog: pytest.LogCaptureFixture) -> None:
    stream, r = site.stream(), Ref("r")
    site.compile(stream, r, b"")
    stream._frames(b"NONSENSE", b"and", b"more")
    assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")]
    assert "unknown command b'NONSENSE'" in caplog.text
