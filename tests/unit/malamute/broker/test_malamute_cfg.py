"""The configuration file of the original broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.malamute_cfg import load_malamute_cfg, parse_zpl

SHIPPED = """\
#   Malamute configuration

#   Apply to the whole broker
server
    timeout = 10000     #   Client connection timeout, msec
    background = 0      #   Run as background process
    workdir = .         #   Working directory for daemon
    verbose = 1         #   Do verbose logging of activity?
    auth
        verbose = 1     #   Debug authentication steps?
        plain = passwords.cfg

#   Apply to the Malamute service
mlm_server
    security
        mechanism = plain
    echo = binding Malamute service to 'tcp://*:9999'
    bind
        endpoint = tcp://*:9999
    bind
        endpoint = "ipc://a # b"
    service
        queue
            size-limit = max     # Maximum size of service queue (in bytes)
            size-warn = 700
    mailbox
        size-limit = 5000
        size-warn = max
"""


def _file(folder: Path, text: str, passwords: str = "#  pw\nreader=secret\nmshell=mshell\n") -> Path:
    (folder / "passwords.cfg").write_text(passwords)
    (folder / "malamute.cfg").write_text(text)
    return folder / "malamute.cfg"


def test_the_file_that_the_original_ships_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_malamute_cfg(_file(tmp_path, SHIPPED))
    assert settings.endpoints == ("tcp://*:9999", "ipc://a # b")
    assert settings.machine.timeout == 10.0
    mailboxes, services = settings.machine.mailboxes, settings.machine.services
    assert (mailboxes.each, mailboxes.total, mailboxes.warn) == (5000, None, None)
    assert (services.each, services.total, services.warn) == (None, None, 700)
    assert settings.security.mechanism == "PLAIN"
    assert settings.security.users == {"reader": "secret", "mshell": "mshell"}
    named = [record.message.partition(": ")[2] for record in caplog.records]
    assert named == ["server/verbose = 1 has no effect here", "server/auth/verbose = 1 has no effect here"]


def test_without_a_timeout_it_is_a_minute_and_bind_wins(tmp_path: Path) -> None:
    settings = load_malamute_cfg(_file(tmp_path, "mlm_server\n    bind\n        endpoint = tcp://a:1\n"), ["tcp://b:2"])
    assert (settings.machine.timeout, settings.endpoints) == (60.0, ("tcp://b:2",))
    assert settings.security.mechanism == "none"


def test_what_the_broker_cannot_do_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "server\n    background = 1\n    lockfile = l\nmlm_server\n    bind\n        endpoint = tcp://a:1\n"
    load_malamute_cfg(_file(tmp_path, text))
    assert "server/background = 1 has no effect" in caplog.text
    assert "server/lockfile = l has no effect" in caplog.text


BIND = "mlm_server\n    bind\n        endpoint = tcp://a:1\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("server\n", "names no endpoint"),
        ("server\n  timeout = 1\n", "line 2: four blanks"),
        ("server\n        timeout = 1\n", "line 2: four blanks"),
        ("server\n    timeout = soon\n" + BIND, "server/timeout must be a number, got 'soon'"),
        (BIND + "    mailbox\n        size-limit = much\n", "mailbox/size-limit must be a number"),
        (BIND + "    security\n        mechanism = curve\n", "mechanism = curve cannot be read"),
        (BIND + "    security\n        mechanism = plain\n", "needs server/auth/plain"),
        (
            "server\n    auth\n        plain = none.cfg\n" + BIND + "    security\n        mechanism = plain\n",
            "none.cfg",
        ),
    ],
)
def test_an_error_names_file_and_line_or_setting(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        load_malamute_cfg(_file(tmp_path, text))
    assert str(tmp_path) in str(caught.value)


def test_lines_of_a_zpl_text_are_paths_and_values() -> None:
    text = "a = 1 # one\nb\n    c = 'x # y'\n    d\n        e =\nf = 2\n\n    # nothing\n"
    assert parse_zpl(text) == [("a", "1"), ("b/c", "x # y"), ("b/d/e", ""), ("f", "2")]
