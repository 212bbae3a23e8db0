"""Values of every type and format, quality, time and errors of live events."""

from __future__ import annotations

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.types import AttributeValue, Encoded, Format, Quality
from mama_spark.testing.waiting import until

from tests.support.tango.tango_subscriptions import SAMPLES, Watch, elements, shaped
from tests.support.tango_processes.servers import TangoServer


@pytest.mark.spec("TG-17", "TG-19", "TG-24", "TG-35")
def test_values_of_every_type_and_format_arrive_unchanged(either: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango att_type_event: change, archive, alarm and user events."""
    names = [(t, s, t if s == "scalar" else f"{t}_{s}") for t in SAMPLES for s in ("scalar", "spectrum", "image")]
    events = ("change", "archive", "alarm", "user_event")
    found = subscriber.subscribe_many(
        [(either.address(), name, event) for name in (*(name for *_, name in names), "encoded") for event in events],
        mode=EventSubMode.SYNC,
    )
    *typed, encoded = [found[n : n + len(events)] for n in range(0, len(found), len(events))]
    pushed = [(s, name, shaped(t, shape)[0]) for (t, shape, name), four in zip(names, typed, strict=True) for s in four]
    pushed += [(subscription, "encoded", {"format": "fmt", "data": "010203"}) for subscription in encoded]
    came: dict[Subscription, AttributeValue] = {}

    def all_came() -> bool:
        for event in subscriber.take():
            came.setdefault(event.subscription, event.value)
        return len(came) == len(pushed)

    def push() -> None:
        for subscription, name, value in pushed:
            if subscription not in came:
                either.push(name, value, subscription.event.wire_name.removesuffix("_event"))

    until(all_came, push)
    for (type_, shape, name), subscriptions in zip(names, typed, strict=True):
        _, want, dims = shaped(type_, shape)
        for got in map(came.__getitem__, subscriptions):
            assert (elements(got), (got.r_dim.x, got.r_dim.y), got.name.lower()) == (want, dims, name)
            assert got.format is {"scalar": Format.SCALAR, "spectrum": Format.SPECTRUM, "image": Format.IMAGE}[shape]
            assert got.quality is Quality.VALID
    for subscription in encoded:
        assert came[subscription].read == (Encoded("fmt", b"\1\2\3"),)


@pytest.mark.spec("TG-11", "TG-18")
def test_quality_time_and_errors_arrive_unchanged(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    subscription = subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC)
    watch = Watch(subscriber)
    watch.begin(subscription, lambda value: lab.push("double", value))
    lab.push("double", 2.5, quality="WARNING", time=1_700_000_000.25)
    lab.push_error("double", "MyReason", "my desc", "my.origin")
    lab.push("double", 3.5, quality="CHANGING")
    watch.until(lambda: len(watch.events) >= 3)
    one, error, two = watch.events
    assert (one.value.quality, one.value.time) == (Quality.WARNING, 1_700_000_000_250_000_000)
    assert two.value.quality is Quality.CHANGING
    assert error.kind is Kind.EVENT
    assert error.data is None
    assert [(e.reason, e.desc, e.origin) for e in error.errors] == [("MyReason", "my desc", "my.origin")]
    with pytest.raises(TypeError, match="carries no value"):
        _ = error.value
