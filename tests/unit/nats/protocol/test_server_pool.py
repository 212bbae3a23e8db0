"""Which server comes next: rounds with delays, what a cluster announces, which certificate and login it gets."""

from __future__ import annotations

import random

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.protocol.server_pool import Server, ServerPool, SilentServers


def pool(*urls: str, silent: SilentServers | None = None, seed: int = 7) -> ServerPool:
    return ServerPool(urls, random.Random(seed), silent or SilentServers(lambda: 0.0))


@pytest.mark.parametrize(
    ("url", "address", "login"),
    [
        ("nats://a:1", "a:1", None),
        ("a", "a:4222", None),
        (" TLS://h ", "h:4222", None),
        ("nats://[::1]:5", "[::1]:5", None),
        ("nats://b%40b:p%2Fw@h", "h:4222", ("b@b", "p/w")),
        ("nats://t0ken@h:9", "h:9", ("t0ken", None)),
    ],
)
def test_urls_of_servers(url: str, address: str, login: tuple[str, str | None] | None) -> None:
    server = Server.of(url)
    assert (server.address, server.login) == (address, login)


@pytest.mark.parametrize(
    "url", ["ws://h", "wss://u:secret@h", "nats://", "nats://h:99999", "http://h", "nats://a..b", f"tls://{'x' * 64}"]
)
def test_what_is_no_server_is_refused_without_its_login(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Server.of(url)
    assert "secret" not in str(refused.value)


def test_a_round_tries_every_server_at_once_and_the_next_one_waits() -> None:
    servers = pool("a", "b", "c")
    for round_number in range(50):
        tries = [servers.next() for _ in range(3)]
        assert {server.host for server, _ in tries} == {"a", "b", "c"}
        assert [delay > 0 for _, delay in tries] == [round_number > 0, False, False]
        assert tries[0][1] <= min(0.1 * 2 ** max(round_number - 1, 0), 0.5)
    servers.connected()
    assert 0 < servers.next()[1] <= 0.1
    others = [pool("a", seed=n) for n in range(9)]
    assert len({[other.next() for _ in range(2)][1][1] for other in others}) == 9, "not all at once"


def test_a_silent_server_is_tried_last_by_all_until_it_answers() -> None:
    now = 0.0
    silent = SilentServers(lambda: now)

    def order(seed: int) -> list[str]:
        servers = pool("a", "b", "c", silent=silent, seed=seed)
        return [servers.next()[0].host for _ in range(3)]

    assert {order(seed)[0] for seed in range(20)} == {"a", "b", "c"}
    first = pool("a", "b", "c", silent=silent)
    while first.next()[0].host != "b":
        pass
    first.silent()
    assert {order(seed)[2] for seed in range(20)} == {"b"}
    assert len({order(seed)[0] for seed in range(20)}) == 2
    alone = pool("b", silent=silent)
    assert alone.next()[0].host == "b", "there is no other"
    alone.connected()
    assert {order(seed)[2] for seed in range(20)} == {"a", "b", "c"}, "it has its place again"
    alone.silent()
    now = 60.0
    assert {order(seed)[2] for seed in range(20)} == {"a", "b", "c"}, "it may be back"
    pool("d", silent=silent).silent()
    assert list(silent._since) == ["d:4222"], "of servers that are gone nothing is kept"


def test_after_an_outage_of_all_servers_none_is_avoided() -> None:
    """Else all new connections went to the one that was tried first when it was over."""
    silent = SilentServers(lambda: 0.0)
    servers = pool("a", "b", "c", silent=silent)
    for _ in range(7):
        servers.next()
        servers.silent()
    servers.connected()
    assert {pool("a", "b", "c", silent=silent, seed=seed).next()[0].host for seed in range(20)} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("size", "within", "greets", "later"),
    [(1, 5, 5, 5), (2, 5, 2.5, 2.5), (3, 6, 2, 2), (5, 6, 1.2, 2), (10, 6, 1, 2), (10, 1.5, 0.5, 0.5)],
)
def test_each_server_of_a_list_has_its_turn_as_far_as_that_leaves_time_for_far_ones(
    size: int, within: float, greets: float, later: float
) -> None:
    servers = pool(*(f"s{n}" for n in range(size)))
    for _ in range(size):
        servers.next()
        assert servers.times(within) == pytest.approx((greets, later))
    servers.next()
    assert servers.times(within) == pytest.approx((later, later)), "the next round is for slow ones"


def test_what_a_cluster_announces_comes_first() -> None:
    servers = pool("nats://u:p@given:4222")
    servers.next()
    assert servers.learn(["10.0.0.1:4222", "[fe80::1]:4222", "other:4222", "given:4222", "ws://x", "::::"])
    assert not servers.learn(["10.0.0.1:4222", "[fe80::1]:4222", "other:4222"])
    assert not servers.learn([]), "it says nothing"
    found = {server.address: server for server in servers.servers}
    assert servers.servers[-1].address == "given:4222"
    assert found.keys() == {"given:4222", "10.0.0.1:4222", "[fe80::1]:4222", "other:4222"}
    assert {server.tls_name for server in found.values()} == {"given", "other"}
    assert {server.login for server in found.values()} == {("u", "p")}


def test_members_that_are_down_are_kept_and_not_without_end() -> None:
    """They may be back when the present one is down."""
    servers = pool("given")
    servers.next()
    servers.learn(["a:1", "b:1"])
    servers.learn(["c:1"])
    assert {s.address for s in servers.servers} == {"a:1", "b:1", "c:1", "given:4222"}
    for n in range(1_000):
        servers.learn([f"pod-{n}:1"])
    assert len(servers) == 65
    assert {"given:4222", "pod-999:1", "pod-936:1"} <= {s.address for s in servers.servers}
