"""The engine over NATS JetStream passes the suite for engines, with a real server, driven as the broker drives it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from mama_spark.malamute.broker.engines.jetstream import engine
from mama_spark.nats.connection import connection
from mama_spark.nats.connection.pool import POOL
from mama_spark.testing.engine_suite import EngineKind, EngineSuite, ReadableEngineSuite

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts, SharedNatsServer


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[SharedNatsServer]:
    with account(nats_accounts, config="max_payload: 16MB") as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow and not away is waited for."""
    monkeypatch.setattr(engine, "BARRIER", 60.0)


class InJetStream:
    @pytest.fixture
    def kind(self, server: SharedNatsServer, request: pytest.FixtureRequest) -> EngineKind:
        # one server serves all tests, each with its own streams
        mark = re.sub(r"\W", "-", f"{type(self).__name__}-{request.node.name}")
        settings = {"servers": server.url, "stream": mark + "-{stream}", "subjects": mark + ".{stream}"}
        return EngineKind("jetstream", settings, stored=True)


class TestJetStream(InJetStream, ReadableEngineSuite):
    pass


@pytest.mark.thorough
class TestJetStreamByPublicCalls(InJetStream):
    """With a version of nats-py whose inside is not known: the rules of what goes to the server and comes back."""

    site = EngineSuite.site
    test_order = EngineSuite.test_what_matches_is_delivered_in_order_with_its_sender_and_content
    test_large = EngineSuite.test_large_and_many_frames_pass_by_reference
    test_ids = EngineSuite.test_ids_and_headers_travel_beside_the_message
    test_blocks = EngineSuite.test_a_block_is_its_messages
    test_positions = EngineSuite.test_a_subscription_begins_behind_the_reported_position
    test_sync = EngineSuite.test_sync_tells_what_became_of_what_was_sent_before_it
    test_credit = EngineSuite.test_credit_given_to_an_engine_never_loses_a_message
    test_streams = EngineSuite.test_streams_do_not_hear_each_other

    @pytest.fixture(autouse=True)
    def _plain(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(connection, "fast_path_usable", lambda client: False)
        POOL.clear()
        yield
        POOL.clear()
