"""A secret in every option that can hold one: no failure shows any, whatever goes wrong."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from mama_spark.cli.main import main
from mama_spark.contracts.errors import MamaError, OptionError
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.broker.configuration import load
from mama_spark.nats import NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import DiscoveryOptions, SinkOptions, SubscribeOptions, TransportOptions
from mama_spark.registry import discovery_bridge, log_bridge, publisher_bridge
from mama_spark.spark.session_defaults import session_defaults

from tests.support.canaries import CREDENTIALS, CURVE_SECRET, ENCODED, PRIVATE_KEY, SEED, STORAGE, WORDS, shown_in
from tests.support.nats.nats_servers import make_certificates

USER, PASSWORD, TOKEN, PLAIN = (WORDS[name] for name in ("user", "password", "token", "PLAIN password of Malamute"))
RAW = WORDS["url"]
LOGIN = {"user": USER, "password": PASSWORD}
MINE, MY_SECRET = (key.decode() for key in zmq.curve_keypair())
BROKER_PUBLIC, BROKER_SECRET = (key.decode() for key in zmq.curve_keypair())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Texts to be filled into options: addresses of servers that refuse all these logins, and paths of files."""
    folder = tmp_path_factory.mktemp("canary")
    (folder / "user.nk").write_text(SEED)
    (folder / "user.creds").write_text(CREDENTIALS)
    (folder / "broken.creds").write_text(CREDENTIALS.replace("BEGIN USER", "USER"))
    (folder / "key.pem").write_text(PRIVATE_KEY)
    with (
        NatsServer(folder / "nats", config="authorization { user: a, password: b }") as nats,
        Broker(BrokerSettings("tcp://127.0.0.1:*", security=Security({"u": "p"}))) as plain,
        Broker(BrokerSettings("tcp://127.0.0.1:*", security=Security(curve_secret_key=BROKER_SECRET))) as curve,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        yield {
            "nats": f"127.0.0.1:{nats.port}", "plain": plain.endpoint.removeprefix("tcp://"),
            "curve": curve.endpoint.removeprefix("tcp://"), "nobody": f"127.0.0.1:{silent.getsockname()[1]}",
            "folder": str(folder), "cert": str(make_certificates(folder / "tls").cert),
        }  # fmt: skip


#: What goes wrong -> the options of it; {name} stands for a place.
FAILURES: dict[str, dict[str, str]] = {
    "wrong password": {"url": "nats://{nats}", **LOGIN},
    "wrong token": {"url": "nats://{nats}", "token": TOKEN},
    "wrong password in the url": {"url": f"nats://{USER}:{ENCODED}@{{nats}}"},
    "wrong token in the url": {"url": f"nats://{ENCODED}@{{nats}}"},
    "no scheme": {"url": f"{USER}:{ENCODED}@{{nats}}"},
    "wrong nkey": {"url": "nats://{nats}", "nkeySeed": "{folder}/user.nk"},
    "wrong credentials": {"url": "nats://{nats}", "credentials": "{folder}/user.creds"},
    "broken credentials": {"url": "nats://{nats}", "credentials": "{folder}/broken.creds"},
    "a seed for its path": {"url": "nats://{nats}", "nkeySeed": SEED},
    "credentials for their path": {"url": "nats://{nats}", "credentials": CREDENTIALS},
    "a key for its path": {"url": "tls://{nats}", "tlsCert": "{cert}", "tlsKey": PRIVATE_KEY},
    "a broken key": {"url": "tls://{nats}", "tlsCert": "{cert}", "tlsKey": "{folder}/key.pem"},
    "a key for the path of a certificate": {"url": "tls://{nats}", "tlsCert": PRIVATE_KEY, "tlsKey": "{folder}/k"},
    "no TLS there": {"url": "tls://{nats}", **LOGIN},
    "a slash in the password": {"url": f"nats://{USER}:{RAW}@{{nats}}"},
    "a comma in the password": {"url": f"nats://{USER}:a,{RAW}@{{nats}}"},
    "an unknown scheme": {"url": f"kafka://{USER}:{RAW}@{{nats}}"},
    "port 0": {"url": f"nats://{USER}:{ENCODED}@h:0"},
    "two middlewares": {"url": f"nats://{USER}:{ENCODED}@h,memory://x"},
    "nobody answers": {"url": f"nats://{USER}:{ENCODED}@{{nobody}}", **STORAGE},
    "password without user": {"url": "nats://{nats}", "password": PASSWORD},
    "given twice": {"url": f"nats://{USER}:{ENCODED}@h", "servers": f"nats://{USER}:{ENCODED}@h"},
    "an unknown option": {"url": "nats://{nats}", **LOGIN, "pasword": PASSWORD},
    "a wrong duration": {"url": "nats://{nats}", **LOGIN, "waitTimeout": f"nats://{USER}:{RAW}@h"},
    "a login in the url of the flight log": {"url": "nats://{nats}", "flightLog": f"s3://{USER}:{RAW}@bucket/log"},
    "keys of a storage and a folder that is a file": {
        "url": "nats://{nats}", **LOGIN, **STORAGE, "flightLog": "{folder}/user.nk"
    },
    "a login in the url of dead letters": {
        "url": "nats://{nats}", "onError": "deadletter", "deadLetterTable": f"s3://{USER}:{RAW}@bucket/log"
    },
    "CURVE on NATS": {"url": "nats://{nats}", "curveServerKey": BROKER_PUBLIC},
    "a login in the url of a broker": {"url": f"mlp://{USER}:{RAW}@{{plain}}/s"},
    "wrong password of a broker": {"url": "mlp://{plain}/s", "user": USER, "password": PLAIN},
    "PLAIN at a broker with CURVE": {"url": "mlp://{curve}/s", "user": USER, "password": PLAIN},
    "CURVE at a broker with PLAIN": {
        "url": "mlp://{plain}/s", "curveServerKey": BROKER_PUBLIC, "curvePublicKey": MINE, "curveSecretKey": MY_SECRET
    },
    "no Z85": {
        "url": "mlp://{curve}/s", "curveServerKey": BROKER_PUBLIC, "curvePublicKey": "é" * 40,
        "curveSecretKey": CURVE_SECRET,
    },
    "a secret key that is too short": {
        "url": "mlp://{curve}/s", "curveServerKey": BROKER_PUBLIC, "curvePublicKey": MINE,
        "curveSecretKey": CURVE_SECRET[:-1],
    },
    "PLAIN and CURVE": {"url": "mlp://{curve}/s", "user": USER, "password": PLAIN, "curveServerKey": BROKER_PUBLIC},
    "a seed for Malamute": {"url": "mlp://{plain}/s", "nkeySeed": "{folder}/user.nk"},
}  # fmt: skip


def filled(options: dict[str, str], places: dict[str, str]) -> dict[str, str]:
    for name, place in places.items():
        options = {key: value.replace(f"{{{name}}}", place) for key, value in options.items()}
    return options


def attempts(options: dict[str, str]) -> Iterator[str]:
    """What is told of options by everything that takes them."""
    shared = {key: value for key, value in options.items() if not key.startswith(("storage.", "flight", "dead", "on"))}
    kinds: list[tuple[type[TransportOptions], dict[str, str]]] = [
        (SinkOptions, options), (SubscribeOptions, {"topics": "s.>", **shared}), (DiscoveryOptions, shared)
    ]  # fmt: skip
    for kind, given in kinds:
        made: object = None
        try:
            parsed = kind.parse(given)
            yield repr(parsed)
            if isinstance(parsed, SinkOptions):
                made = publisher_bridge(parsed)
            elif isinstance(parsed, SubscribeOptions):
                made = log_bridge(parsed, 1.0)
            else:
                made = discovery_bridge(parsed)
            yield repr(getattr(made, "settings", None))
        except MamaError as e:
            yield "".join(traceback.format_exception(e)) + repr(e) + repr(vars(e))
    try:
        session_defaults({f"spark.mama.{name}": value for name, value in options.items()})
    except OptionError as e:
        yield "".join(traceback.format_exception(e)) + repr(e) + repr(vars(e))


@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_shows_a_secret(
    failure: str,
    places: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    options = filled(FAILURES[failure], places)
    url = options.pop("url")
    told = list(attempts({"url": url, **options}))
    with caplog.at_level(logging.DEBUG):
        arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        code = main(["check", "--url", url, *arguments])
    told += [*capsys.readouterr(), caplog.text]
    assert code != 0
    text = "\n".join(told)
    assert shown_in(text) == [], text


def test_no_repr_of_settings_shows_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        f'[security.users]\njoe = "{PLAIN}"\n[[stream]]\npattern = "."\nengine = "jetstream"\n'
        f'servers = "nats://{USER}:{ENCODED}@h"\n[[stream]]\npattern = "x"\nengine = "jetstream"\n'
        f'servers = "nats://h"\nuser = "{USER}"\npassword = "{PASSWORD}"\n'
    )
    settings = NatsSettings((f"nats://{USER}:{RAW}@h",), user=USER, password=PASSWORD, token=TOKEN, nkey_seed=SEED)
    broker = load(path)
    assert shown_in(f"{settings!r}{broker!r}{broker.engines!r}{Security({'u': PLAIN})!r}") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--url", f"nats://{USER}:{ENCODED}@h", f"nats://{USER}:{RAW}@h"],
        ["check", "-o", PASSWORD],
        ["check", "--url", f"nats://{USER}:{RAW}@h", "-o", f"token={TOKEN}", "-o", f"=x{PASSWORD}"],
        ["flights", f"s3://{USER}:{RAW}@bucket"],
        ["sub", "s.>", "--url", f"nats://{USER}:{RAW}@h"],
        ["pub", "s.a", "x", "--url", f"nats://{USER}:12/{RAW}@h"],
        ["sources", "--url", f"nats://{USER}:{RAW}@h"],
        ["events", "--url", f"nats://{USER}:{RAW}@h"],
        ["record", "--url", "tango://h:1", "--to", f"nats://{USER}:{RAW}@h/S"],
        ["tango-source", f"nats://{USER}:12/{RAW}@h/S"],
    ],
)
def test_no_command_shows_a_secret_of_its_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as e:
        code = int(e.code or 0)
    assert code != 0
    assert shown_in("".join(capsys.readouterr())) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f'[[stream]]\npattern = "."\nengine = "jetstream"\nservers = "nats://joe:{RAW}@h"\n', "servers"),
        (f'[[stream]]\npattern = "."\nengine = "jetstream"\nservers = "mlp://h"\nnkey_seed = "{SEED}"\n', "servers"),
        (f'[[stream]]\npattern = "."\nengine = "jetstream"\nservers = "h"\nnkey_seed = "{SEED}"\n', "nkey_seed"),
        (f'[security]\ncurve_secret_key = "{CURVE_SECRET[:-1]}"\n', "40 characters"),
        (f'[security]\nusers = "{PLAIN}"\n', "users"),
        (f'[security]\npassword = "{PLAIN}"\n', "password"),
    ],
)
def test_no_error_in_the_file_of_a_broker_shows_a_secret(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(MamaError, match=named) as e:
        load(path)
    assert shown_in("".join(traceback.format_exception(e.value))) == []
