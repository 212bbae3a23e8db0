"""What logs in, read from files that somebody else writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.connection.login import login_fields
from mama_spark.nats.protocol.server_pool import Server
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

CREDS = "-----BEGIN NATS USER JWT-----\nj.w.t\n------END NATS USER JWT------\n"


@each(
    ("option", "content", "nonce", "said"),
    [
        ("nkey_seed", "SUNOSEED", "n", "nkeySeed: not the seed of a key"),
        ("nkey_seed", "SUNOSEED", "", "nkeySeed: this server asks for no signature"),
        ("nkey_seed", b"\xff", "n", "nkeySeed: .* cannot be read: UnicodeDecodeError"),
        ("credentials", CREDS, "n", "credentials: the file has no user JWT, or no seed"),
        (
            "credentials",
            f"{CREDS}-----BEGIN USER NKEY SEED-----\nSUNOSEED\n------END USER NKEY SEED------\n",
            "n",
            "credentials: not the seed of a key",
        ),
    ],
)
def test_a_file_that_cannot_log_in_is_a_wrong_setting_and_stays_secret(
    tmp_path: Path, option: str, content: str | bytes, nonce: str, said: str
) -> None:
    path = tmp_path / "login"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = NatsSettings(("nats://h",), **{option: str(path)})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said) as refused:
        login_fields(settings, Server.of("h"), nonce)
    assert "SUNOSEED" not in str(refused.value)
