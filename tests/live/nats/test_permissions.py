"""The permissions of docs/reference/permissions.md: what happens when a single one of them is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options.stream_names import stream_range

from tests.support.fault_driver import Driver
from tests.support.nats.mamasub import read
from tests.support.nats.nats_servers import Admin

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "permissions.md").read_text()
CREATE = "$JS.API.STREAM.CREATE.*"


def listed(kind: str, exactly_once: bool = False) -> list[str]:
    """Subjects of the page's table that a user may ``kind``, the topics written out.

    :param exactly_once: those that only the option ``exactlyOnce`` needs; else all others
    """
    rows = re.findall(rf"^\| {kind} \| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    rows = [subjects for subjects, what in rows if ("exactlyOnce" in what) is exactly_once]
    found = [name for row in rows for name in (re.findall(r"`([^`]+)`", row) or ["s.>"])]
    assert found, f"the page lists nothing to {kind}"
    return found


PUBLISH, SUBSCRIBE = listed("publish"), listed("subscribe")


def test_the_page_lists_what_the_code_asks_for() -> None:
    assert set(PUBLISH) == {"s.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", CREATE}
    assert SUBSCRIBE == ["_INBOX.>"]
    assert set(listed("publish", exactly_once=True)) == {
        "$JS.API.STREAM.MSG.GET.*", "MAMA_BATCHES.>", "$JS.API.STREAM.CREATE.MAMA_BATCHES", "_INBOX.>",
        *(f"$JS.API.CONSUMER.{name}.>" for name in ("CREATE", "MSG.NEXT", "INFO", "DELETE")),
    }  # fmt: skip


NEEDED = [*PUBLISH, *SUBSCRIBE]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """With a user for each permission, who has all but that one."""

    def words(names: list[str], missing: str) -> str:
        return "[" + ", ".join(f'"{n}"' for n in [*names, "unused"] if n != missing) + "]"

    users = ["{user: admin, password: p}"]
    for i, missing in enumerate(NEEDED):
        rules = f"{{publish: {words(PUBLISH, missing)}, subscribe: {words(SUBSCRIBE, missing)}}}"
        users.append(f"{{user: spark{i}, password: p, permissions: {rules}}}")
    folder = tmp_path_factory.mktemp("permissions") / "nats"
    with NatsServer(folder, config=f"authorization {{ users = [ {', '.join(users)} ] }}") as server:
        yield server


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(server.url, user="admin", password="p") as admin:
        yield admin
        admin.api("STREAM.DELETE.S")


def without(missing: str) -> dict[str, Any]:
    """How the user logs in who does not have this permission."""
    return {"user": f"spark{NEEDED.index(missing)}", "password": "p"}


@pytest.mark.parametrize("stream", [None, "S"], ids=["topics", "stream"])
@pytest.mark.parametrize(
    ("missing", "warned"),
    [
        (CREATE, (False, False)),
        ("$JS.API.INFO", (True, True)),
        ("$JS.API.STREAM.NAMES", (True, False)),
        ("$JS.API.STREAM.INFO.*", (True, True)),
    ],
)
def test_what_may_not_be_asked_is_warned_about_and_all_is_published(
    server: NatsServer, admin: Admin, missing: str, warned: tuple[bool, bool], stream: str | None
) -> None:
    admin.create_stream("S", ["s.>"])
    with Driver(server.url, stream=stream, **without(missing)) as driver:
        driver.put(["s.a"], 100)
        driver.drain()
        assert driver.events() == {"acked": 100}, driver.reasons[:3]
        driver.conserved(admin)
        said = " ".join(driver.bridge.warnings)
    if warned[stream is not None]:
        assert f"no permission to ask {missing.removesuffix('*')}" in said
        assert "is not checked" in said
    else:
        assert not said


def publish_to(bridge: NatsBridge, topic: str) -> None:
    bridge.open()
    bridge.prepare(MessageBatch.of([topic], [b""]))


NOBODY_CREATES = r"; another user must make what is missing: no permission to publish to \$JS.API.STREAM.CREATE.p?"
SET = {"streams": stream_range("p-{0..1}")}


@pytest.mark.parametrize(
    ("missing", "settings", "said"),
    [
        *(
            (hidden, {"ack_mode": "batch", "stream": "THERE"}, "may be replicated")
            for hidden in ("$JS.API.INFO", "$JS.API.STREAM.INFO.*")
        ),
        ("_INBOX.>", {}, "no permission to subscribe to '_INBOX"),
        (CREATE, {"stream": "S", "create_stream": True}, "no permission to create the stream 'S'"),
        *((None, more, "; createStream=true makes") for more in ({}, SET)),
        *((CREATE, more, NOBODY_CREATES) for more in ({}, SET)),
        ("$JS.API.STREAM.NAMES", {"stream": "S"}, "there is no stream 'S'; no permission to list those that exist"),
    ],
)
def test_what_cannot_be_done_without_a_permission_is_refused_before_the_first_message(
    server: NatsServer, admin: Admin, missing: str | None, settings: dict[str, Any], said: str
) -> None:
    admin.create_stream("THERE", ["there.>"], allow_batched=True)
    login = {"user": "admin", "password": "p"} if missing is None else without(missing)
    bridge = NatsBridge(NatsSettings((server.url,), **settings, **login))
    with pytest.raises(ConfigError, match=said), closing(bridge):
        publish_to(bridge, "s.a")
    assert not admin.messages("THERE")
    admin.api("STREAM.DELETE.THERE")


def test_the_users_of_the_configuration_file_may_only_write_and_only_read(tmp_path: Path) -> None:
    lines = (ROOT / "conf" / "nats-server.conf").read_text().partition("# authorization {")[2].splitlines()
    users = "authorization {" + "\n".join(line.removeprefix("#") for line in lines)
    users = re.sub(r"\$\w+_PASSWORD", "p", users).replace("users = [", "users = [ {user: admin, password: p}")

    with NatsServer(tmp_path / "nats", config=users) as server:
        with Admin(server.url, user="admin", password="p") as admin:
            admin.create_stream("ORDERS", ["orders.>"])
        for user, event in ("writer", "acked"), ("reader", "completed_exceptionally"):
            with Driver(server.url, stream="ORDERS", user=user, password="p") as driver:
                driver.put(["orders.a"], 10)
                driver.drain()
                assert driver.events() == {event: 10}, driver.reasons[:3]
        orders = {"stream": "ORDERS", "waitTimeout": "5s", "password": "p"}
        assert [row["sequence"] for row in read(server.url, user="reader", **orders)] == list(range(1, 11))
        with pytest.raises(
            ConfigError, match=r"no permission .*; allow publish to '\$JS.API.CONSUMER.CREATE.ORDERS.>'"
        ):
            read(server.url, user="writer", **orders)
