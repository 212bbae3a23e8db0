"""URLs of peers, and endpoints of a ``mama.properties`` file, as the code of both bridges takes them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from mama_spark.cli.commands import record
from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.properties import Properties, expand
from mama_spark.openmama.recorder.settings import OpenMamaRecorderSettings
from mama_spark.openmama.wire.frames import OZ, ZMQ
from mama_spark.openmama.wire.settings import Endpoint, PeerSettings, property_urls

from tests.support.tables import each

Expected = tuple[tuple[str, ...], tuple[Endpoint, ...], tuple[Endpoint, ...]]
HERE = "tcp://h:5557"
LOCAL = ("tcp://127.0.0.1:5756",)


def bound(port: int) -> Endpoint:
    return Endpoint(f"tcp://*:{port}", True)


def dialed(address: str) -> Endpoint:
    return Endpoint(f"tcp://{address}", False)


#: name of the transport, what stands behind ``mama.zmq.transport.<name>.``, name servers, outgoing, incoming
FILES: list[tuple[str, str, Expected]] = [
    ("oz", "", (LOCAL, (), ())),
    ("oz", "is_naming=1", (LOCAL, (), ())),
    ("oz", "naming.subscribe_address_0=10.0.0.1\nnaming.subscribe_port_0=5799", (("tcp://10.0.0.1:5799",), (), ())),
    ("oz", "naming.subscribe_address=a\nnaming.subscribe_address_0=b", (("tcp://a:5756",), (), ())),
    ("oz", "naming.subscribe_port=1\nnaming.subscribe_port_0=2", (("tcp://127.0.0.1:1",), (), ())),
    ("oz", "naming.subscribe_address_1=b\nnaming.subscribe_port_1=7", ((*LOCAL, "tcp://b:7"), (), ())),
    ("oz", "naming.subscribe_address_1=b", (LOCAL, (), ())),  # a second one needs its port
    ("oz", "is_naming=0", ((), (bound(5557),), (dialed("127.0.0.1:5556"),))),
    ("pub", "is_naming=0", ((), (bound(5556),), (dialed("127.0.0.1:5557"),))),
    ("pub", "is_naming=0\noutgoing_url=tcp://*:1\nincoming_url=tcp://h:2", ((), (bound(1),), (dialed("h:2"),))),
    ("pub", "is_naming=0\noutgoing_url=tcp://*:1\noutgoing_url_0=tcp://*:3",
     ((), (bound(3),), (dialed("127.0.0.1:5557"),))),
    ("sub", "is_naming=0\nincoming_url_0=tcp://a:1\nincoming_url_1=tcp://b:2\nincoming_url_3=tcp://d:4",
     ((), (bound(5557),), (dialed("a:1"), dialed("b:2")))),
    ("sub", "is_naming=0\noutgoing_url_0=tcp://a:9", ((), (dialed("a:9"),), (dialed("127.0.0.1:5556"),))),
]  # fmt: skip


def made(framing: str, name: str, lines: str, receiver: bool) -> PeerSettings:
    text = "\n".join(f"mama.zmq.transport.{name}.{line}" for line in lines.splitlines())
    urls = property_urls(Properties.parse(text, {}), name, framing, receiver=receiver)
    return PeerSettings.from_urls(urls, receiver=receiver)


@pytest.mark.spec("OW32")
@each("receiver", [False, True])
@each(("name", "lines", "expected"), FILES)
def test_endpoints_of_oz(name: str, lines: str, expected: Expected, receiver: bool) -> None:
    found = made("oz", name, lines, receiver)
    assert (found.naming, found.outgoing, found.incoming) == expected


@pytest.mark.spec("OW32")
@pytest.mark.parametrize("receiver", [False, True])
def test_the_older_bridge_has_no_naming(receiver: bool) -> None:
    found = made("zmq", "sub", "is_naming=1\nincoming_url_0=tcp://h:1", receiver)
    assert (found.framing.name, found.naming) == ("zmq", ())
    assert (found.outgoing, found.incoming) == ((bound(5557),), (dialed("h:1"),))


@pytest.mark.spec("OW32")
def test_the_address_that_others_connect_to() -> None:
    assert made("oz", "oz", "publish_address=10.0.0.7", True).publish_address == "10.0.0.7"


@pytest.mark.spec("OW32")
def test_what_cannot_be_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match="only endpoints tcp"):
        made("oz", "pub", "is_naming=0\noutgoing_url=ipc:///tmp/x", False)
    with pytest.raises(ConfigError, match="framing must be one of"):
        property_urls({}, "pub", "qpid")


@pytest.mark.spec("OW32")
def test_a_transport_of_the_file_gives_the_url_of_a_query(tmp_path: Path) -> None:
    path = tmp_path / "mama.properties"
    path.write_text("mama.zmq.transport.oz.naming.subscribe_port=5799\nmama.zmq.transport.old.framing=zmq\n")
    given = {"bridge": "openmama", "properties": str(path)}
    assert expand({**given, "transport": "oz"}, ["url"], {}).options["url"] == "oz://127.0.0.1:5799"
    assert expand({**given, "transport": "old"}, ["url"], {}).options["url"].startswith("zmq://*:5557?mode=direct")
    assert expand({**given, "transport": "oz", "url": "oz://h:1"}, ["url"], {}).options["url"] == "oz://h:1"


@pytest.mark.spec("OW32")
def test_the_recorder_takes_a_transport_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mama.properties"
    path.write_text("mama.zmq.transport.sub.is_naming=0\nmama.zmq.transport.sub.incoming_url_0=tcp://h:1\n")
    parser = argparse.ArgumentParser()
    record.add_arguments(parser)
    words = ["--properties", str(path), "--transport", "sub", "--topic", "OM.A", "--to", "nats://h:4222/MAMA"]
    settings, _ = record.settings_of(parser.parse_args(words))
    assert isinstance(settings, OpenMamaRecorderSettings)
    assert (settings.peer.outgoing, settings.peer.incoming) == ((bound(5557),), (dialed("h:1"),))
    with pytest.raises(ConfigError, match="go together"):
        record.settings_of(parser.parse_args([*words, "--url", "oz://h:1"]))


# --- URLs ---


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
