"""What is wrong with a file is said with its option and its path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.connection.tls import tls_context
from mama_spark.nats.settings import NatsSettings

from tests.support.nats.nats_servers import make_certificates


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_ca": "missing.pem"}, "tlsCa (*missing.pem*): *No such file"),
        ({"tls_ca": "cert-dir"}, "tlsCa (*cert-dir*): *Is a directory"),
        ({"tls_ca": "key.pem"}, "tlsCa (*key.pem*): *"),
        ({"tls_ca": "ca.pem", "tls_cert": "key.pem", "tls_key": "cert.pem"}, "tlsCert and tlsKey (*key.pem* and *"),
        ({"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "ca-key.pem"}, "tlsCert and tlsKey (*ca-key.pem*): *"),
    ],
)
def test_tls_files(tmp_path: Path, given: dict[str, str], said: str) -> None:
    folder = tmp_path / "files"
    make_certificates(folder)
    (folder / "cert-dir").mkdir()
    wanted = ".*".join(map(re.escape, f"cannot read the TLS files of {said}".split("*")))
    paths: dict[str, Any] = {name: str(folder / file) for name, file in given.items()}
    with pytest.raises(ConfigError, match=wanted):
        tls_context(NatsSettings(("tls://h",), **paths))
