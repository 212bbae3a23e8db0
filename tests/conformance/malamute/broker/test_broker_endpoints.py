"""A broker serves all endpoints of its configuration at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from mama_spark.errors import ConfigError, Unavailable
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings
from mama_spark.services.malamute_broker.configuration import load


def _ipv6() -> list[str]:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return []  # a machine without IPv6
    return ["tcp://[::1]:*"]


def test_clients_of_all_endpoints_meet(tmp_path: Path) -> None:
    endpoints = ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/broker.ipc", *_ipv6())
    with Broker(BrokerSettings(endpoints)) as broker:
        assert broker.endpoint == broker.endpoints[0]
        urls = [endpoint.replace("tcp://", "mlp://") for endpoint in broker.endpoints]
        assert len(urls) == len(endpoints)
        with MalamuteClient(urls[0], "reader") as reader:
            reader.read("s", "")
            for url in urls:
                with MalamuteClient(url, "writer") as writer:
                    writer.write("s")
                    writer.send(url[:255], b"")
                    writer.sync()
                message = reader.receive(timeout=60)
                assert message is not None
                assert message.subject == url


def test_an_endpoint_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as first:
        broker = Broker(BrokerSettings((f"ipc://{tmp_path}/broker.ipc", first.endpoint)))
        with pytest.raises(Unavailable, match=f"cannot bind {first.endpoint}"):
            broker.start()


def test_the_file_may_list_endpoints(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[broker]\nbind = ["tcp://a:1", "ipc://b"]\n')
    assert load(file).endpoints == ("tcp://a:1", "ipc://b")
    assert load(file, ["tcp://c:2"]).endpoints == ("tcp://c:2",)
    file.write_text("[broker]\nbind = []\n")
    with pytest.raises(ConfigError, match="bind must be a text, or a list of texts"):
        load(file)
