"""URLs of peers."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.openmama.wire.frames import OZ, ZMQ
from mama_spark.openmama.wire.settings import Endpoint, PeerSettings

from tests.support.tables import each

HERE = "tcp://h:5557"


@each(
    ("urls", "expected"),
    [
        (["oz://h"], PeerSettings(OZ, ("tcp://h:5756",))),
        (["oz://h:1", "oz://i:2"], PeerSettings(OZ, ("tcp://h:1", "tcp://i:2"))),
        (["oz://[::1]:1?publish_address=::1"], PeerSettings(OZ, ("tcp://[::1]:1",), "::1")),
        (["oz://h?mode=direct"], PeerSettings(OZ, outgoing=(Endpoint(HERE),))),
        (["zmq://h", "zmq://i:1"], PeerSettings(ZMQ, outgoing=(Endpoint(HERE), Endpoint("tcp://i:1")))),
        (["zmq://h?bind=true"], PeerSettings(ZMQ, outgoing=(Endpoint(HERE, True),))),
        (["zmq://*:5557?incoming=tcp://*:5556"],
         PeerSettings(ZMQ, outgoing=(Endpoint("tcp://*:5557", True),), incoming=(Endpoint("tcp://*:5556", True),))),
    ],
)  # fmt: skip
def test_urls(urls: list[str], expected: PeerSettings) -> None:
    assert PeerSettings.from_urls(urls) == expected


def test_the_first_socket_of_a_receiver_receives() -> None:
    settings = PeerSettings.from_urls(["zmq://h?incoming=tcp://h:5556"], receiver=True)
    assert (settings.incoming, settings.outgoing) == ((Endpoint(HERE),), (Endpoint("tcp://h:5556"),))
    assert not PeerSettings.from_urls(["oz://h"]).without_receiving().receive


@each(
    ("urls", "words"),
    [
        (["oz://h", "zmq://h"], "one framing"),
        (["nats://h"], "one framing"),
        (["zmq://h?mode=naming"], "no naming service"),
        (["oz://h?mode=x"], "mode is naming or direct"),
        (["oz://h?mode=direct", "oz://i"], "mode is naming or direct"),
        (["oz://h?bind=true"], "for mode=direct"),
        (["oz://h?mode=direct&publish_address=x"], "publish_address is for naming"),
        (["oz://h?publish_address=a", "oz://i?publish_address=b"], "one publish_address"),
        (["zmq://h?bind=perhaps"], "bind is true or false"),
        (["zmq://h?incoming=ipc://x"], "incoming is tcp"),
        (["oz://h?x=y"], "'x' is not known"),
        (["oz://h/path"], "no path"),
        (["oz://a", "oz://b", "oz://c", "oz://d"], "three name servers"),
    ],
)
def test_urls_that_say_nothing_sound(urls: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PeerSettings.from_urls(urls)


def test_settings_without_a_bound_or_a_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a name server, or an endpoint"):
        PeerSettings(OZ)
    with pytest.raises(ConfigError, match="memory has no bound"):
        PeerSettings(OZ, ("tcp://h:1",), high_water_mark=0)
