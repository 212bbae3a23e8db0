"""Topics of consumers, from audits that are read near their advisories and kept for the advisories that follow."""

from __future__ import annotations

from typing import Any

import orjson
from mama_spark.nats.discovery import consumer_advisories as adv
from mama_spark.nats.discovery.consumer_tracker import ConsumerTracker
from mama_spark.nats.protocol.direct_get import StoredMessage

TIME = "1970-01-01T00:00:00.000009Z"
CREATED = StoredMessage(7, TIME, f"{adv.CREATED}S.c", orjson.dumps({"timestamp": TIME}))


class Advisories:
    """A stream with one audit, of a consumer that filters ``topic``, so far from its end that nothing more is read."""

    def __init__(self, topic: str) -> None:
        self.topic, self.asked = topic, 0

    def get_many(self, stream: str, **body: Any) -> tuple[list[StoredMessage], int]:
        if "multi_last" in body:
            return [], 0
        self.asked += 1
        answer = {"type": "consumer_create_response", "stream_name": "S", "name": "c", "created": TIME,
                  "config": {"filter_subject": self.topic}}  # fmt: skip
        audit = orjson.dumps({"timestamp": TIME, "response": orjson.dumps(answer).decode()})
        end = StoredMessage(1_000, TIME, adv.AUDITS, orjson.dumps({"timestamp": TIME}))
        return [StoredMessage(8, TIME, adv.AUDITS, audit), end], 0


def test_audits_are_kept_until_the_stream_is_made_again() -> None:
    stream: Any = Advisories("t.a")
    tracker = ConsumerTracker(stream, 0.0)
    told = [tracker.changes("A", CREATED, "first")[0].topic for _ in range(2)]
    assert (told, stream.asked) == (["t.a", "t.a"], 1)
    stream.topic = "t.b"
    assert tracker.changes("A", CREATED, "second")[0].topic == "t.b"
