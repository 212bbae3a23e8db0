"""Records of one topic in one message: what comes out of the packs is what went in, topic by topic in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.record_log import Records
from mama_spark.openmama.recorder.frame_recorder import RecordPacker
from mama_spark.packing.pack_headers import rows_of_messages
from mama_spark.packing.unpacker import unpack

from tests.support.tiers import examples

TOPICS = ["mama.A", "mama.B", "mama._dictionary.OM"]


def by_topic(topics: list[str], payloads: list[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for topic, payload in zip(topics, payloads, strict=True):
        found.setdefault(topic, []).append(payload)
    return found


@examples(50)
@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=40)), min_size=1, max_size=60),
    st.integers(1, 9), st.integers(700, 1500),
)  # fmt: skip
def test_no_record_is_lost_and_each_topic_keeps_its_order(
    sent: list[tuple[str, bytes]], max_rows: int, max_bytes: int
) -> None:
    topics, payloads = [topic for topic, _ in sent], [payload for _, payload in sent]
    packer, came = RecordPacker(max_rows, max_bytes, ("mama._dictionary",)), dict[str, list[bytes]]()
    for batch in packer.messages(pa.array(topics).dictionary_encode(), pa.array(payloads, pa.binary())):
        rows = rows_of_messages(batch)
        assert rows.max() <= max_rows
        none = np.zeros(len(batch), np.int64)
        found = unpack(Records(none, none, batch.topics, batch.payloads, batch.headers))
        assert not found.errors
        assert len(found) == rows.sum()
        names = batch.topics.to_pylist()
        for topic, values in by_topic([names[row] for row in found.records], found.values.to_pylist()).items():
            came.setdefault(topic, []).extend(values)
        packed = {name for name, n in zip(names, rows.tolist(), strict=True) if n > 1}
        assert not any("_dictionary" in name for name in packed), "readers look for dictionaries by their topic"
    assert came == by_topic(topics, payloads)
