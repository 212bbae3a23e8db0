"""Texts of configurations and errors between us and PyTango 10.3.1 and 9.3.6, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.giop.cdr import CdrError
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import AttributeConfig, DataType, DevError, EventType, Severity
from mama_spark.testing.waiting import until

from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.servers import BEAT, PATIENT, TIMEOUT, DeviceProbe, Failed, TangoServer

TEXT = "é ß Ω 漢 😀"
DEVICE = "test/pub/1"


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def client(release: int, tmp_path: Path) -> Iterator[DeviceProbe]:
    with DeviceProbe(tmp_path / "client", release=release) as started:
        yield started


def test_pytango_reads_the_texts_of_a_source(client: DeviceProbe) -> None:
    attributes = [
        Attribute("level", label=TEXT, description=TEXT, unit=TEXT),
        Attribute("colour", DataType.ENUM, enum_labels=(f"1 {TEXT}", f"2 {TEXT}")),
        Attribute("words", DataType.STRING),
    ]
    device = Device(DEVICE, attributes, f"Class {TEXT}", f"About {TEXT}")
    with TangoEventSource([device], SourceSettings(heartbeat_period=BEAT)) as source:
        address = source.address(DEVICE)
        config = client.call("config", device=address, attribute="level")
        assert [config[name] for name in ("label", "description", "unit")] == [TEXT] * 3
        labels = client.call("config", device=address, attribute="colour")["enum_labels"]
        assert labels == [f"1 {TEXT}", f"2 {TEXT}"]
        assert client.call("info", device=address)["dev_class"] == f"Class {TEXT}"
        source.set(DEVICE, "words", "é ß")  # values are Latin-1
        assert client.call("read", device=address, attribute="words")["value"] == "é ß"
        source.set(DEVICE, "level", errors=[DevError("Broken", Severity.ERR, "é ß", TEXT)])
        with pytest.raises(Failed) as caught:
            client.call("read", device=address, attribute="level")
        assert caught.value.errors[0]["desc"] == "é ß"
        assert caught.value.errors[0]["origin"] == TEXT.encode().decode("latin-1")  # as from servers of PyTango
        number = client.subscribe(address, "words", "attr_conf")
        until(
            lambda: any(not e["err"] and e["config"]["unit"] == TEXT for e in client.events(number)),
            # again: the client may still connect
            lambda: source.add_attributes(DEVICE, [Attribute("words", DataType.STRING, unit=TEXT)], replace=True),
        )


def test_the_texts_of_pytango_servers_are_read(release: int, tmp_path: Path) -> None:
    with (
        TangoServer(tmp_path / "server", release=release) as server,
        TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as subscriber,
    ):
        with open_device(parse_device(server.address()), timeout=TIMEOUT) as device:
            (config,) = device.attribute_configs(["texts"])
        assert (config.label, config.description, config.unit) == (TEXT, TEXT, TEXT)
        subscriber.subscribe(server.address(), "texts", EventType.ATTR_CONF)
        subscriber.subscribe(server.address(), "double", EventType.CHANGE)
        events: list[SubscriptionEvent] = []

        def descriptions() -> list[str]:
            events.extend(subscriber.take())
            return [error.desc for event in events for error in event.errors]

        until(lambda: TEXT in descriptions(), lambda: server.push_error("double", "Broken", TEXT))
        assert any(isinstance(event.data, AttributeConfig) and event.data.label == TEXT for event in events)


def test_what_cannot_be_sent_is_refused_by_name_when_it_is_declared_or_set() -> None:
    with pytest.raises(ConfigError, match="level: unit: a string must not contain a NUL"):
        Attribute("level", unit="a\0b")
    with pytest.raises(ConfigError, match=f"{DEVICE}: description: "):
        Device(DEVICE, description="\ud800")
    source = TangoEventSource([Device(DEVICE, [Attribute("words", DataType.STRING)])])
    with pytest.raises(CdrError, match="words: 'Ω' cannot be encoded as Latin-1"):
        source.set(DEVICE, "words", "Ω")
    with pytest.raises(CdrError, match="a string must not contain a NUL"):
        source.set(DEVICE, "words", errors=[DevError("Broken", Severity.ERR, "a\0b", "")])
