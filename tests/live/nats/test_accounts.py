"""The accounts that tests share a server by: one sees nothing of another, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats import nats_accounts as module
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_servers import Admin


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    accounts = Accounts(tmp_path)
    yield accounts
    accounts.close()


def test_an_account_sees_nothing_of_another_and_is_emptied_when_it_is_given_back(accounts: Accounts) -> None:
    one, two = accounts.take(), accounts.take()
    assert one.port == two.port, "one server"
    with Admin(one.url) as mine, Admin(two.url) as theirs:
        for admin in (mine, theirs):
            admin.create_stream("S", ["s.>", "$JS.EVENT.ADVISORY.>"], no_ack=True)
        mine.create_stream("T", ["t.>"])
        assert mine.api("STREAM.NAMES")["streams"] == ["S", "T"]
        assert theirs.api("STREAM.NAMES")["streams"] == ["S"]
        assert not [m for m in theirs.messages("S") if b'"stream":"T"' in m.payload]
        accounts.give_back(one.account)
        assert not mine.api("STREAM.NAMES")["streams"]
        assert theirs.api("STREAM.NAMES")["streams"] == ["S"]


def test_a_server_whose_accounts_are_used_up_is_followed_by_another_and_ends_with_its_last_test(
    accounts: Accounts,
) -> None:
    one, two = accounts.take(), accounts.take()
    accounts.give_back(one.account)
    three = accounts.take()
    assert three.port != two.port
    assert two.running
    accounts.give_back(two.account)
    assert not two.running
    assert three.running
    other = accounts.take(config="max_payload: 1024")
    assert other.port != three.port, "another configuration is another server"


def test_nobody_ends_a_shared_server(accounts: Accounts) -> None:
    server = accounts.take()
    for end in ("kill", "stop", "shutdown", "restart", "pause", "resume", "start"):
        with pytest.raises(AssertionError, match="own_server"):
            getattr(server, end)()
    assert server.running
