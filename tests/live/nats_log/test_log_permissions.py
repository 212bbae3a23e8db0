"""What a reader may not do is named; what only tidies up is not needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats import NatsSettings
from mama_spark.nats.read.logs import NatsLog, NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.log_suite import numbers
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_log import reading
from tests.support.nats.nats_servers import Admin

DENIED = [
    ("$JS.API.STREAM.INFO.*", "log"),
    ("$JS.API.STREAM.NAMES", "names"),
    ("$JS.API.CONSUMER.CREATE.>", "read"),
    ("$JS.API.CONSUMER.MSG.NEXT.>", "read"),
    ("$JS.API.CONSUMER.CREATE.>", "at"),
    ("$JS.API.STREAM.PURGE.*", "trim"),
]


TIDYING, CONSUMERS = "$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.>"


READERS = [*sorted({deny for deny, _ in DENIED}), TIDYING, CONSUMERS]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """``admin`` may everything; for each of :data:`READERS` there is a reader who may everything but that. A stream S
    holds three records."""
    users = ["{user: admin, password: a}"]
    for i, deny in enumerate(READERS):
        users.append(f'{{user: reader{i}, password: r, permissions: {{ publish: {{ deny: ["{deny}"] }} }} }}')
    # the inbox of the connection itself is allowed, that of a feed is not
    inbox = '{ subscribe: { allow: ["_INBOX.>"], deny: ["_INBOX.*.*"] } }'
    users.append(f"{{user: deaf, password: r, permissions: {inbox} }}")
    folder = tmp_path_factory.mktemp("strict") / "nats"
    with NatsServer(folder, config=f"authorization {{ users: [ {', '.join(users)} ] }}") as server:
        with Admin(server.url, user="admin", password="a") as admin:
            admin.create_stream("S", ["S.>"])
            for i in range(3):
                admin._run(admin._client.publish(f"S.{i}", b""))
            eventually(lambda: admin.info("S")["state"]["last_seq"] == 3, "three are stored")
        yield server


def reader(denied: str) -> dict[str, Any]:
    """How the reader logs in who may not do this."""
    return {"user": f"reader{READERS.index(denied)}", "password": "r"}


@pytest.mark.parametrize(("deny", "call"), DENIED)
def test_a_missing_permission_is_named(strict: NatsServer, deny: str, call: str) -> None:
    with reading(strict.url, **reader(deny)) as logs:
        calls: dict[str, Callable[[], object]] = {
            "log": lambda: logs.log("S"),
            "names": lambda: logs.names(["S.>"]),
            "read": lambda: list(logs.log("S").read(0, 3)),
            "at": lambda: logs.log("S").sequence_at(0),
            "trim": lambda: logs.log("S").trim(2),
        }
        with pytest.raises(ConfigError, match=deny.rstrip(">*").replace("$", r"\$").replace(".", r"\.")):
            calls[call]()


def test_an_inbox_that_may_not_be_read_is_named(strict: NatsServer) -> None:
    """The inbox of the connection itself is allowed, that of a feed is not."""
    logs = NatsLogs(NatsSettings((strict.url,), user="deaf", password="r"))
    with pytest.raises(ConfigError, match="_INBOX"):
        logs.open()
    logs.close()


def test_permissions_that_only_tidy_up_are_not_needed(strict: NatsServer) -> None:
    with reading(strict.url, **reader(TIDYING)) as logs:
        log = logs.log("S")
        assert numbers(log.read(0, 3)) == [1, 2, 3]
        assert log.sequence_at(0) == 1


def test_progress_that_cannot_be_shown_is_logged_and_nothing_else(
    strict: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(strict.url, **reader(CONSUMERS)) as logs, caplog.at_level(logging.WARNING, "mama_spark"):
        log: NatsLog = logs.log("S")
        log.progress("telemetry", 2)
        assert "telemetry" in caplog.text
        assert "no permission" in caplog.text
        caplog.clear()
        log.progress("not a name", 2)
        assert "no name of a consumer" in caplog.text
