"""What our engines that store pass: replay, credit, ids and sequences. Inherit and make the engine::

    class TestMine(StoredEngineSuite):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda: MyEngine(b"st", {"folder": str(tmp_path)})

:class:`~mama_spark.malamute.testing.engine_suite.EngineSuite` has the rules for every engine. Here the engine is called
as its thread calls it, but without the thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator

import pytest
from mama_spark.malamute.broker.engines import Delivery, StreamEngine
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, StoreOutcome
from mama_spark.malamute.testing.driven_stream import TIMEOUT

Acks = tuple[AckRun, ...]
MakeEngine = Callable[[], StreamEngine]


class StoredEngineHarness:
    """One engine that was started, and what it delivered."""

    def __init__(self, engine: StreamEngine) -> None:
        self.engine = engine
        self.got: list[Delivery] = []
        try:
            engine.start()
        except BaseException:
            engine.close()  # as the broker does
            raise
        engine.traffic(self.got.append)

    def until(self, done: Callable[[], bool]) -> None:
        """Let the engine work without a command until a condition is true."""
        end = time.monotonic() + TIMEOUT
        while not done():
            assert time.monotonic() < end, f"{self.engine}, {len(self.got)} delivered"
            wait = self.engine.idle()
            if not done():
                time.sleep(min(wait or 0.0, 0.05))

    def publish(
        self,
        *subjects: bytes,
        client: Hashable = "w",
        address: bytes = b"writer",
        ids: bool = False,
        content: bytes = b"x",
    ) -> Acks:
        """One batch of messages; their outcomes."""
        for subject in subjects:
            extension = Extension(message_id=subject) if ids else NO_EXTENSION
            self.engine.accept(client, address, subject, [content], extension)
        return self.sync(client)

    def sync(self, client: Hashable = "w") -> Acks:
        outcomes = self.engine.sync(client)
        self.engine.flush()
        return self.known(outcomes)

    def known(self, outcomes: Acks | Callable[[], Acks | None]) -> Acks:
        """What :meth:`StreamEngine.sync` returned, once it is known."""
        if not callable(outcomes):
            return outcomes
        found: list[Acks] = []

        def known() -> bool:
            acks = outcomes()
            found.extend([] if acks is None else [acks])
            return acks is not None

        self.until(known)
        return found[0]

    def taken(self, n: int, client: Hashable = "r") -> list[int]:
        """Sequences that this client got since the last call, once there are ``n``; and no more come soon."""
        self.until(lambda: sum(d.client == client for d in self.got) >= n)
        for _ in range(20):
            self.engine.idle()
        return self.delivered(client)

    def delivered(self, client: Hashable = "r") -> list[int]:
        """Sequences that this client got since the last call."""
        found = [d.extension.sequence or 0 for d in self.got if d.client == client and d.extension is not None]
        self.got[:] = [d for d in self.got if d.client != client]
        return found

    def read(self, n: int, after: int | None = 0, client: Hashable = "r", pattern: bytes = b"") -> list[int]:
        """Subscribe; sequences as of :meth:`taken`."""
        self.engine.compile(client, pattern, after)
        self.engine.flush()
        return self.taken(n, client)


def numbered(n: int) -> list[bytes]:
    """Subjects 1 to n."""
    return [b"%d" % i for i in range(1, n + 1)]


def mix_live_and_replay(one: StoredEngineHarness, seed: int) -> None:
    """Publish, subscribe with and without a position, give credit and idle at random: each cursor gets what matches,
    once."""
    dice = random.Random(seed)
    names = [b"a", b"b", b"ab", b"c"]
    sent: list[tuple[bytes, str]] = []
    starts: dict[str, dict[bytes, int]] = {}
    for _ in range(60):
        who = dice.choice(["r", "s"])
        action = dice.randrange(6)
        if action <= 1:
            for _ in range(dice.randrange(4)):
                sender, subject = dice.choice(["w", "r"]), dice.choice(names)
                one.engine.accept(sender, b"", subject, [b""])
                sent.append((subject, sender if sender in starts else "w"))
        elif action == 2:
            pattern = dice.choice([b"a", b"b", b"^a$", b""])
            after = dice.choice([None, 0, dice.randrange(len(sent) + 1)])
            one.engine.compile(who, pattern, after)
            starts.setdefault(who, {}).setdefault(pattern, len(sent) if after is None else after)
        elif action == 3:
            one.engine.credit(who, dice.randrange(5))
        elif action == 4:
            one.engine.flush()
        else:
            one.engine.idle()
    for who in starts:
        one.engine.credit(who, 10_000)
    one.engine.flush()
    for who, patterns in starts.items():
        expected = [
            n
            for n, (subject, sender) in enumerate(sent, 1)
            if sender != who
            and any(
                n > after and (pattern == b"" or (subject == b"a" if pattern == b"^a$" else pattern in subject))
                for pattern, after in patterns.items()
            )
        ]
        assert sorted(one.taken(len(expected), who)) == expected, (seed, who)


class StoredEngineSuite:
    """The rules of a stored stream."""

    @pytest.fixture
    def make(self) -> MakeEngine:
        """An engine of the same stream at each call; the one before is closed, and none is started."""
        raise NotImplementedError

    @pytest.fixture
    def one(self, make: MakeEngine) -> Iterator[StoredEngineHarness]:
        harness = StoredEngineHarness(make())
        yield harness
        harness.engine.close()

    # --- storing -------------------------------------------------------------------------------------------------

    @pytest.mark.spec("ML-01", "ML-22")
    def test_what_was_acknowledged_is_there_for_the_next_engine_and_numbers_go_on(self, make: MakeEngine) -> None:
        one = StoredEngineHarness(make())
        assert one.publish(b"a", b"b") == (AckRun(StoreOutcome.STORED, 2, 1),)
        one.engine.close()
        two = StoredEngineHarness(make())
        assert two.publish(b"c") == (AckRun(StoreOutcome.STORED, 1, 3),)
        assert two.read(3) == [1, 2, 3]
        two.engine.close()

    def test_live_and_replayed_messages_are_alike_and_come_back_as_they_were(self, one: StoredEngineHarness) -> None:
        one.engine.compile("live", b"")
        extension = Extension(message_id=b"i\xff", headers=((b"k", b"1"), (b"k", b"2"), (b"\xff", b"")))
        contents: list[list[bytes]] = [[], [b""], [b"one", b"", b"three" * 1000], [b"\0\xff"]]
        for content in contents:
            beside = extension if len(content) == 3 else NO_EXTENSION
            one.engine.accept("w", b"sen\xffder", b"sub\xffject", content, beside)
        one.sync()
        one.engine.compile("late", b"", 0)
        one.until(lambda: len(one.got) == 2 * len(contents))
        live, late = (
            [(*d[1:3], list(d.content), d.extension) for d in one.got if d.client == who] for who in ("live", "late")
        )
        assert live == late
        assert [message[:3] for message in live] == [(b"sen\xffder", b"sub\xffject", content) for content in contents]
        found = [message[3] for message in live]
        assert [found_one.sequence for found_one in found if found_one is not None] == [1, 2, 3, 4]
        assert found[2] is not None
        assert (found[2].message_id, found[2].headers) == (b"i\xff", extension.headers)

    def test_an_id_is_stored_once_and_the_answer_names_the_first(self, one: StoredEngineHarness) -> None:
        one.engine.compile("r", b"")
        assert one.publish(b"x", b"y", b"x", ids=True) == (
            AckRun(StoreOutcome.STORED, 2, 1),
            AckRun(StoreOutcome.DUPLICATE, 1, 1),
        )
        assert one.publish(b"y", client="other", ids=True) == (AckRun(StoreOutcome.DUPLICATE, 1, 2),)
        assert one.taken(2) == [1, 2]

    def test_sync_counts_what_came_before_it_and_no_more(self, one: StoredEngineHarness) -> None:
        accept, sync = one.engine.accept, one.engine.sync
        accept("a", b"", b"1", [], NO_EXTENSION)
        accept("b", b"", b"2", [], NO_EXTENSION)
        accept("a", b"", b"3", [], NO_EXTENSION)
        first = sync("a")
        accept("a", b"", b"4", [], NO_EXTENSION)
        accept("silent", b"", b"5", [])
        second, other = sync("a"), sync("b")
        one.engine.flush()
        assert [one.known(outcomes) for outcomes in (first, second, other)] == [
            (AckRun(StoreOutcome.STORED, 1, 1), AckRun(StoreOutcome.STORED, 1, 3)),
            (AckRun(StoreOutcome.STORED, 1, 4),),
            (AckRun(StoreOutcome.STORED, 1, 2),),
        ]
        assert one.sync("silent") == ()

    @pytest.mark.spec("ML-14")
    def test_cancel_ends_subscriptions_and_not_the_acknowledgements(self, one: StoredEngineHarness) -> None:
        one.engine.compile("w", b"")
        one.engine.accept("w", b"", b"1", [], NO_EXTENSION)
        one.engine.cancel("w")
        assert one.sync("w") == (AckRun(StoreOutcome.STORED, 1, 1),)

    # --- replay --------------------------------------------------------------------------------------------------

    @pytest.mark.spec("ML-22")
    def test_replay_begins_behind_a_position_with_what_matches_and_goes_on_live(self, one: StoredEngineHarness) -> None:
        one.publish(*numbered(10))
        assert one.read(3, after=7) == [8, 9, 10]
        assert one.read(9, client="some", pattern=b"^.$") == list(range(1, 10))
        for after in (1000, None):
            assert one.read(0, after=after, client=after) == []
        one.publish(b"x", b"yy")
        for client, wanted in (("r", [11, 12]), ("some", [11]), (1000, [11, 12]), (None, [11, 12])):
            assert one.taken(len(wanted), client) == wanted, client

    @pytest.mark.spec("ML-25")
    def test_a_second_pattern_replays_only_what_the_first_did_not_deliver(self, one: StoredEngineHarness) -> None:
        one.engine.compile("r", b"^1")
        one.publish(*numbered(12))
        assert one.taken(4) == [1, 10, 11, 12]
        assert one.read(1, after=0, pattern=b"[12]$") == [2]
        one.publish(b"12", b"x", b"2")
        assert one.taken(2) == [13, 15]

    @pytest.mark.spec("ML-12")
    def test_compile_again_replays_nothing(self, one: StoredEngineHarness) -> None:
        one.publish(*numbered(3))
        assert one.read(3) == [1, 2, 3]
        assert one.read(0) == []

    @pytest.mark.spec("ML-15")
    def test_own_messages_do_not_come_back_by_replay_either(self, one: StoredEngineHarness) -> None:
        one.engine.compile("r", b"")
        one.engine.credit("r", 0)
        one.publish(b"1", client="w")
        one.publish(b"2", client="r")
        one.publish(b"3", client="w")
        one.engine.credit("r", 10)
        one.engine.flush()
        assert one.taken(2) == [1, 3]
        assert one.read(3, client="other") == [1, 2, 3]

    @pytest.mark.parametrize("seed", range(6))
    def test_live_and_replay_meet_without_a_hole_or_a_double(self, one: StoredEngineHarness, seed: int) -> None:
        mix_live_and_replay(one, seed)

    # --- credit --------------------------------------------------------------------------------------------------

    @pytest.mark.spec("ML-07", "ML-21")
    def test_nothing_goes_beyond_the_credit_and_the_rest_follows_in_order(self, one: StoredEngineHarness) -> None:
        one.engine.compile("r", b"")
        one.engine.credit("r", 0)
        one.publish(*numbered(5))
        assert one.taken(0) == []
        for amount, expected in ((2, [1, 2]), (1, [3]), (10, [4, 5])):
            one.engine.credit("r", amount)
            one.engine.flush()
            assert one.taken(len(expected)) == expected
        one.publish(*numbered(10))
        assert one.taken(8) == list(range(6, 14)), "8 were left"
        one.engine.credit("r", None)
        one.publish(*numbered(1))
        assert one.taken(3) == [14, 15, 16]

    def test_credit_that_was_taken_back_is_not_used(self, one: StoredEngineHarness) -> None:
        one.engine.compile("r", b"")
        one.engine.credit("r", 5)
        one.engine.credit("r", -5)
        one.publish(b"a")
        assert one.taken(0) == []
        one.engine.credit("r", None)
        one.engine.flush()
        assert one.taken(1) == [1]

    def test_replay_uses_credit_too(self, one: StoredEngineHarness) -> None:
        one.publish(*numbered(1000))
        one.engine.compile("r", b"", 0)
        one.engine.credit("r", 3)
        one.engine.flush()
        assert one.taken(3) == [1, 2, 3]
