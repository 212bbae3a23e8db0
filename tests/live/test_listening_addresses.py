"""Who can reach what we start: servers of a machine's own are on loopback, unless somebody says otherwise."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import Any

import psutil
import pytest
from mama_spark.cli.main import parse
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.commands.broker import open_to_all
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.telemetry.metrics_server import MetricsServer

from tests.support.nats.nats_accounts import SharedNatsCluster


def listening(pid: int) -> dict[int, str]:
    """Port and address of everything that a process listens at."""
    found = psutil.Process(pid).net_connections("inet")
    return {c.laddr.port: c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def test_a_nats_server_is_on_loopback_with_all_its_ports(nats_cluster: SharedNatsCluster) -> None:
    """As ``mama serve`` starts it, with its monitoring."""
    with NatsServer() as server:
        found = listening(server.pid)
        assert server.port in found
        assert len(found) == 2
        assert all(ip_address(ip).is_loopback for ip in found.values()), found
        (configuration,) = server.folder.glob("*.conf")
        assert configuration.stat().st_mode & 0o077 == 0, "it may hold passwords"
    for node in nats_cluster.nodes:
        found = listening(node.pid)
        assert len(found) == 3
        assert all(ip_address(ip).is_loopback for ip in found.values()), found


def test_a_broker_is_on_loopback_and_serves_no_metrics_unless_told() -> None:
    assert load(None).bind == "tcp://127.0.0.1:9999"
    assert load(None).metrics is None
    before = listening(os.getpid())
    with Broker(BrokerSettings("tcp://127.0.0.1:*", metrics="127.0.0.1:0")):
        found = {port: ip for port, ip in listening(os.getpid()).items() if port not in before}
        assert len(found) == 2
        assert all(ip_address(ip).is_loopback for ip in found.values()), found


@pytest.mark.parametrize(
    ("bind", "metrics", "security", "warned"),
    [
        ("tcp://127.0.0.1:9999", None, Security(), []),
        ("tcp://127.0.0.1:9999", "0.0.0.0:9090", Security(), ["the pages at 0.0.0.0:9090"]),
        ("tcp://*:9999", None, Security(), ["the broker listens on all interfaces"]),
        ("tcp://0.0.0.0:9999", "[::]:9090", Security(), ["the broker listens", "the pages at"]),
        ("tcp://[::]:9999", "localhost:9090", Security(), ["the broker listens"]),
        ("tcp://*:9999", None, Security(users={"bob": "secret"}), []),
    ],
)
def test_a_broker_says_what_is_open_to_all(
    bind: str, metrics: str | None, security: Security, warned: list[str]
) -> None:
    found = open_to_all(BrokerSettings(bind, metrics=metrics, security=security))
    assert [any(text in one for one in found) for text in warned] == [True] * len(found)


@pytest.mark.parametrize(
    ("given", "all_interfaces"), [({}, False), ({"host": "127.0.0.1"}, False), ({"host": "0.0.0.0"}, True)]
)
def test_a_tango_source_is_on_loopback_and_says_when_it_is_not(
    given: dict[str, Any], all_interfaces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert parse(["tango-source", "nats://h/S"]).bind == "127.0.0.1:0"
    before = listening(os.getpid())
    with TangoEventSource((), SourceSettings(**given)):
        found = {port: ip for port, ip in listening(os.getpid()).items() if port not in before}
    assert len(found) == 3
    assert all(ip_address(ip).is_loopback is not all_interfaces for ip in found.values()), found
    assert ("served on all interfaces" in caplog.text) is all_interfaces


@pytest.mark.parametrize("address", [":9090", "9090", ""])
def test_metrics_are_served_at_an_address_that_is_named(address: str) -> None:
    """Without a host, it would be all interfaces."""
    with pytest.raises(ConfigError, match="metrics are served at host:port"):
        MetricsServer(address, {})


def test_metrics_at_a_port_that_is_taken_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable, match="cannot serve metrics"):
        MetricsServer(f"127.0.0.1:{taken.getsockname()[1]}", {})
