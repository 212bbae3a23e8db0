"""The Malamute client's login, its keys, and its settings."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings, endpoint

from tests.support.tables import each


@each(
    "options",
    [
        {"urls": ()}, {"user": "u"}, {"password": "p"}, {"user": "", "password": "p"},
        {"user": "u", "password": "p" * 256},
        {"curve_public_key": "x" * 40, "curve_secret_key": "x" * 40},
        {"curve_server_key": "x" * 39}, {"curve_server_key": "x" * 40, "curve_public_key": "x" * 40},
        {"user": "u", "password": "p", "curve_server_key": "x" * 40},
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConnectionSettings(**options)


def test_a_key_that_is_none_is_told_and_secrets_are_not() -> None:
    with pytest.raises(ConfigError, match=r"40 characters \(Z85\)"):
        MalamuteClient("mlp://127.0.0.1:1", timeout=1.0, curve_server_key=" " * 40).open()
    assert "hush" not in repr(ConnectionSettings(user="u", password="hush"))


@each(
    ("url", "name"),
    [
        ("mlp://h", "tcp://h:9999"), ("MLP://h:1/stream", "tcp://h:1"), ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)  # fmt: skip
def test_urls_name_endpoints(url: str, name: str) -> None:
    assert endpoint(url) == name
