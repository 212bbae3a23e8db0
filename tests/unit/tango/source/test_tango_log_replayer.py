"""Log records become devices, attributes and values of an event source, here without subscribers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.console.log_arguments import default_state_file
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Records
from mama_spark.recording.log_position import LogPosition
from mama_spark.tango.bridge import RecordCodec
from mama_spark.tango.commands.tango_source import read_rules
from mama_spark.tango.log.records import RecordKind
from mama_spark.tango.source.device import Attribute, Criteria
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.log_replayer import LogReplayer, Rule
from mama_spark.tango.source.replay_service import StartPosition
from mama_spark.tango.types import AttributeValue, DataType, Format, Quality

from tests.support.tango.records import encode_one

DEVICE = "lab/cell/1"
STORED = 1_800_000_000_000_000  #: by the clock of the log, µs


def records(value: pa.Array, first: int = 1, source: str = "lab", **columns: Any) -> Records:
    n = len(value)
    named = {"device": [DEVICE] * n, "attribute": ["Level"] * n, **columns, "value": value}
    made = RecordCodec(source, "tango").encode(pa.RecordBatch.from_pydict(named))
    assert not made.bad
    return Records(np.arange(first, first + n), np.full(n, STORED), made.topics, made.payloads)


@pytest.fixture
def source() -> TangoEventSource:
    return TangoEventSource()


def attribute(source: TangoEventSource, name: str) -> Attribute:
    return next(a for a in source.attributes(DEVICE) if a.name == name)


def last(source: TangoEventSource, name: str) -> AttributeValue:
    state = source._supplier.attribute(DEVICE, name)
    return state.reading.value(state.attribute)


def test_devices_and_attributes_are_declared_as_they_appear(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.replay(records(pa.array([1.5, 2.5])))
    serving.replay(records(pa.array([[1, 2]], pa.list_(pa.int32())), attribute=["Profile"]))
    assert source.devices == (DEVICE,)
    assert [a.name for a in source.attributes(DEVICE)] == ["Level", "Profile", "State", "Status"]
    profile = attribute(source, "Profile")
    assert (profile.data_type, profile.format) == (DataType.LONG, Format.SPECTRUM)
    assert last(source, "Level").content.tolist() == [2.5]  # type: ignore[union-attr]
    assert (serving.counts.records, serving.counts.bad, serving.counts.skipped) == (3, 0, 0)


def test_an_attribute_whose_type_changes_is_declared_again(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.replay(records(pa.array([1.5])))
    serving.replay(records(pa.array(["high"])))
    assert attribute(source, "Level").data_type is DataType.STRING
    assert last(source, "Level").content == ("high",)


def test_a_value_without_a_time_has_that_of_the_log(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.replay(records(pa.array([1.5])))
    assert last(source, "Level").time == STORED * 1000
    serving.replay(records(pa.array([1.5]), time=pa.array([7])))
    assert last(source, "Level").time == 7


def test_quality_images_and_missing_values_stay_as_they_are(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.replay(records(pa.array([1.5]), quality=["WARNING"]))
    assert last(source, "Level").quality is Quality.WARNING
    serving.replay(records(pa.array([None], pa.float64()), quality=["INVALID"]))
    assert (last(source, "Level").quality, last(source, "Level").content) == (Quality.INVALID, None)
    serving.replay(records(pa.array([[["a", "b", "c"], ["d", "e", "f"]]]), attribute=["words"]))
    assert (last(source, "words").content, last(source, "words").r_dim) == (tuple("abcdef"), (3, 2))
    assert serving.counts.bad == 0


def test_state_is_the_devices_own(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.replay(records(pa.array(["FAULT"]), attribute=["State"]))
    assert last(source, "State").content == 8
    # rows of such a kind are refused before they are published; another writer may do what it likes
    other = records(pa.array([1]), attribute=["stats"])
    topics = [topic.replace("stats", "state") for topic in other.topics.to_pylist()]
    payloads = [payload.replace(b"stats", b"state") for payload in other.payloads.to_pylist()]
    serving.replay(Records(other.sequences, other.times, pa.array(topics).dictionary_encode(), pa.array(payloads)))
    assert serving.counts.reasons == [f"record 1: {DEVICE}/state is STATE, not LONG64"]


def test_records_of_other_sources_are_skipped_and_bad_records_counted(source: TangoEventSource) -> None:
    serving = LogReplayer(source, name="Lab")
    serving.replay(records(pa.array([1.0]), source="other"))
    payloads = pa.array([encode_one(RecordKind.STARTED, 5), b"no record"], pa.binary())
    topics = pa.array(["tango.writer"] * 2).dictionary_encode()
    serving.replay(Records(np.array([8, 9]), np.array([1, 1]), topics, payloads))
    counts = serving.counts
    assert (counts.records, counts.skipped, counts.recorded, counts.bad) == (0, 2, 1, 1)
    assert serving.counts.reasons[0].startswith("record 9: the payload is no record of Tango events")
    assert source.devices == ()


def test_the_newest_record_of_each_topic_is_known(source: TangoEventSource) -> None:
    serving = LogReplayer(source)
    serving.remember(records(pa.array([1.0, 2.0]), first=4))
    serving.remember(records(pa.array([1.0]), first=9, attribute=["Other"]))
    payloads = pa.array([encode_one(RecordKind.STARTED, 5)], pa.binary())
    serving.remember(Records(np.array([10]), np.array([1]), pa.array(["tango.recorder"]).dictionary_encode(), payloads))
    assert serving.last == {"tango.lab.lab.cell.1.level.change": 5, "tango.lab.lab.cell.1.other.change": 9}


# --- settings ----------------------------------------------------------------------------------------------


def test_the_first_matching_rule_applies(source: TangoEventSource) -> None:
    rules = [Rule("LAB/*/lev*", abs_change=0.5, archive_period=1000, unit="mm"), Rule("*", unit="K")]
    serving = LogReplayer(source, rules)
    serving.replay(records(pa.array([1.0, 2.0]), attribute=["Level", "other"]))
    level = attribute(source, "Level")
    assert (level.unit, attribute(source, "other").unit) == ("mm", "K")
    assert level.change == Criteria(abs_change=0.5, detect=True)
    assert level.archive == Criteria(period=1000, detect=True)
    assert attribute(source, "other").change == Criteria()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[attribute]]\nabs_change = 1", "the key pattern is missing"),
        ('[[attribute]]\npattern = "*"\nabs = 1', "unknown key 'abs'"),
        ('[[attribute]]\npattern = "*"\nabs_change = "1"', "abs_change must be a number, got '1'"),
        ('[[attribute]]\npattern = "*"\nperiod = 1.5', "period must be a positive duration"),
        ('[[attribute]]\npattern = "*"\nabs_change = -1', "must be above 0"),
        ("[attribute]\nx = 1", "only tables"),
        ("[[device]]\nx = 1", "only tables"),
        ("attribute", "not TOML"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_the_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_rules(path)
    assert str(path) in str(caught.value)


def test_a_position_file_is_read_and_an_invalid_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    assert StartPosition.load(path) == StartPosition()
    at = StartPosition(LogPosition("id", 7, 4_711), {"a.b": 3}, [("d/f/m", "a", "CHANGE", 2, ["127.0.0.1 17"])])
    at.save(path)
    assert StartPosition.load(path) == at
    path.write_text('{"identity":"id","served":7,"last":{},"wanted":[["d/f/m","a","CHANGE",2]]}')  # of release 0.3
    earlier = StartPosition.load(path)
    assert earlier.wanted == [("d/f/m", "a", "CHANGE", 2, [])]
    assert [p.name for p in tmp_path.iterdir()] == ["position.json"]
    whole = '{"identity": "x", "served": %s, "last": {}, "wanted": %s}'
    for text in ("", "{}", whole % ('"y"', "[]"), whole % (1, '[["d/f/m", "a", "OTHER", 1]]'), "[]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="remove it to begin anew"):
            StartPosition.load(path)


def test_each_log_and_server_has_a_position_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    one = default_state_file("tango-source", ("nats://h/A",), "mama/source", ".json")
    assert one.parent == Path("/state/mama-spark")
    assert one == default_state_file("tango-source", ("nats://u:p@h/A",), "mama/source", ".json")
    others = [(("nats://h/B",), "mama/source"), (("nats://h/A",), "x/y")]
    assert len({one, *(default_state_file("tango-source", urls, server, ".json") for urls, server in others)}) == 3
