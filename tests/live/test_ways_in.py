"""Every way to be let in by a server: user, token, nkey, credentials file, client certificate; and several servers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nkeys
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.preflight import check_server
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.connections import connected
from tests.support.nats.nats_servers import Admin

OPERATOR, ACCOUNT, USER = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)


class Key:
    """An nkey with its texts, and the JWTs that it signs."""

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
        self.pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self.pair.public_key.decode()

    def sign(self, subject: str, name: str, nats: dict[str, Any], **more: int) -> str:
        claims = {"iat": 1_700_000_000, "iss": self.public, "sub": subject, "name": name, **more}
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**claims, "nats": {"version": 2, **nats}}]
        text = b".".join(_url64(json.dumps(p).encode()) for p in parts)
        return (text + b"." + _url64(self.pair.sign(text))).decode()


def _url64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def write_credentials(path: Path, account: Key, **claims: int) -> Path:
    """A credentials file of a new user of the account."""
    user = Key(USER)
    jwt = account.sign(user.public, "job", {"type": "user", "subs": -1, "data": -1, "payload": -1}, **claims)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return path


def operated() -> tuple[str, Key]:
    """Configuration of a server with one operator, and the one account that it has."""
    operator, account = Key(OPERATOR), Key(ACCOUNT)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = {**unlimited, "wildcards": True, **storage}
    account_jwt = operator.sign(account.public, "desk", {"type": "account", "limits": limits})
    system = Key(ACCOUNT)
    system_jwt = operator.sign(system.public, "SYS", {"type": "account", "limits": unlimited})
    config = (
        f"operator: {operator.sign(operator.public, 'test', {'type': 'operator'})}\n"
        f"system_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{\n  {account.public}: {account_jwt}\n  {system.public}: {system_jwt}\n}}"
    )
    return config, account


def lets_in(url: str, admin: dict[str, Any], **login: Any) -> None:
    with Admin(url, **admin) as a:
        a.create_stream("S", ["s.>"])
        with Driver(url, **login) as driver:
            driver.put(["s.a"], 100)
            driver.drain()
            assert driver.events() == {"acked": 100}
            driver.conserved(a)
        with connected(NatsSettings((url,), **login)):
            pass


def keeps_out(url: str, secret: str = "", match: str = "credentials", **login: Any) -> None:
    settings = NatsSettings((url,), **login)
    bridge = NatsBridge(settings)
    with pytest.raises(ConfigError, match=match) as caught:
        bridge.open()
    bridge.close()
    assert not secret or secret not in f"{caught.value!r}{settings!r}{bridge!r}"
    with pytest.raises(ConfigError, match=match) as caught, connected(settings):
        pass
    assert not secret or secret not in repr(caught.value)


#: As it stands between the : and the @ of a URL, percent-encoded, and as the server knows it.
PASSWORD, ENCODED = "p/?#@:, %ä", "p%2F%3F%23%40%3A%2C%20%25%C3%A4"


@pytest.mark.parametrize(
    ("login", "in_url", "wrong"),
    [
        ({"user": "joe@lab", "password": PASSWORD}, f"joe%40lab:{ENCODED}", {"user": "joe@lab", "password": "sesame"}),
        ({"token": PASSWORD}, ENCODED, {"token": "sesame"}),
    ],
    ids=["user", "token"],
)
def test_a_login_of_options_or_of_the_url(
    login: dict[str, str], in_url: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    """In the URL it is percent-decoded; it is shown nowhere."""
    config = ", ".join(f'{name}: "{value}"' for name, value in login.items())
    with NatsServer(tmp_path / "n", config=f"authorization {{ {config} }}") as server:
        lets_in(server.url, login, **login)
        keeps_out(server.url, "sesame", **wrong)
        found = check_server(NatsSettings((server.url.replace("//", f"//{in_url}@"),), stream="S"))
    assert all(fine for fine, _ in found), found
    said = repr(found)
    assert f"at 127.0.0.1:{server.port} of nats://127.0.0.1:{server.port}" in said
    assert ENCODED not in said
    assert PASSWORD not in said


def test_nkey_seed(tmp_path: Path) -> None:
    """As the option says it: a file with the seed. What is no file may be the seed itself, and is not shown."""
    mine, other = Key(USER), Key(USER)
    files = {key: tmp_path / f"{key.public}.nk" for key in (mine, other)}
    for key, path in files.items():
        path.write_text(f"{key.seed.decode()}\n")
    (tmp_path / "nonsense.nk").write_text("SUNONSENSE")
    with NatsServer(tmp_path / "n", config=f"authorization {{ users = [ {{nkey: {mine.public}}} ] }}") as server:
        lets_in(server.url, {"nkeys_seed_str": mine.seed.decode()}, nkey_seed=str(files[mine]))
        keeps_out(server.url, other.seed.decode(), nkey_seed=str(files[other]))
        keeps_out(server.url, "SUNONSENSE", "cannot connect", nkey_seed=str(tmp_path / "nonsense.nk"))
        keeps_out(server.url, mine.seed.decode(), "nkeySeed must be the path of a file", nkey_seed=mine.seed.decode())
        keeps_out(server.url, "sesame", "nkeySeed: there is no such file", nkey_seed="sesame")


def test_credentials_file(tmp_path: Path) -> None:
    config, account = operated()
    path, stranger = (str(write_credentials(tmp_path / f"{one.public}.creds", one)) for one in (account, Key(ACCOUNT)))
    with NatsServer(tmp_path / "n", config=config) as server:
        lets_in(server.url, {"user_credentials": path}, credentials=path)
        keeps_out(server.url, "", "no such file", credentials=str(tmp_path / "missing.creds"))
        keeps_out(server.url, "", credentials=stranger)


def test_a_publisher_goes_on_with_renewed_credentials(tmp_path: Path) -> None:
    config, account = operated()
    path, lasting = tmp_path / "short.creds", str(write_credentials(tmp_path / "lasting.creds", account))
    with NatsServer(tmp_path / "n", config=config) as server, Admin(server.url, user_credentials=lasting) as admin:
        admin.create_stream("S", ["s.>"])
        with ExitStack() as ends:

            def connected_with_what_expires() -> Driver | None:
                """The machine may take longer to connect."""
                write_credentials(path, account, exp=int(time.time()) + 5)
                with contextlib.suppress(ConfigError):
                    return ends.enter_context(Driver(server.url, credentials=str(path)))
                return None

            driver: Driver = eventually(connected_with_what_expires, "it is connected")
            driver.begin(["s.a"], 100)
            write_credentials(path, account)
            ended = "Authentication Expired"
            eventually(lambda: ended in str(server.ask("connz?state=closed")), "the server ends the connection")
            driver.put(["s.a"], 100)
            driver.drain()
            assert driver.events() == {"acked": 200}, driver.reasons[:3]
            driver.conserved(admin)
