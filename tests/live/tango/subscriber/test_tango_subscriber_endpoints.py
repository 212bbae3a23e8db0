"""ZeroMQ endpoints of a server: which one a subscriber connects to, and its high-water mark (TG-08, TG-32, TG-33)."""

from __future__ import annotations

import socket

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_calls import choose
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.errors import ServerAway
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.topics import BadEndpoint

from tests.support.ports import lasting_port
from tests.support.tango.tango import FAST
from tests.support.tango.tango_subscriptions import DEVICE, Watch, pair
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoServer


@pytest.mark.spec("TG-33")
def test_the_first_of_several_endpoints_that_accepts_connections_is_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (pair(s.getsockname()[1]) for s in (one, two))
        assert choose([pair(lasting_port()), first, second]) == first
        assert choose([pair(9, "epgm"), pair(lasting_port()), second]) == second
    with pytest.raises(ServerAway, match="none of 2 endpoints accepts a connection"):
        choose([pair(lasting_port()), pair(lasting_port())])


@pytest.mark.spec("TG-08", "TG-32")
@pytest.mark.parametrize("host", ["!x", "\xe9", "a@b", "-", "*"])
def test_an_invalid_endpoint_is_an_error_and_other_subscriptions_continue(host: str) -> None:
    """ZeroMQ raises for such endpoints, in the receiving thread of all subscriptions."""
    attributes = [Attribute("level")]
    with (
        TangoEventSource([Device(DEVICE, attributes)]) as bad,
        TangoEventSource([Device(DEVICE, attributes)]) as good,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber,
    ):
        with pytest.raises(ConfigError, match="cannot be advertised"):
            TangoEventSource((), SourceSettings(advertise=[host]))
        bad._advertise = (host,)
        with pytest.raises(BadEndpoint):
            subscriber.subscribe(bad.address(DEVICE), "level")
        subscriber._consumer._receiver.connect(pair(7)._replace(event=f"tcp://{host}:7"), ("a", "b"), 1000)
        watch = Watch(subscriber)
        subscriber.subscribe(good.address(DEVICE), "level")
        watch.wait(Kind.EVENT, act=lambda: good.push_change_event(DEVICE, "level", 1.0))


@pytest.mark.spec("TG-10", "TG-44")
def test_the_high_water_mark_is_that_of_the_argument_the_variable_or_the_server(
    lab: TangoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANGO_EVENT_BUFFER_HWM", raising=False)
    found = []
    for given, variable in ((None, ""), (None, "77"), (55, "77")):
        monkeypatch.setenv("TANGO_EVENT_BUFFER_HWM", variable)
        with TangoSubscriber(hwm=given, timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
            subscriber.subscribe(lab.address(), "long")
            found.append(subscriber.hwm)
    assert found == [1000, 77, 55]
