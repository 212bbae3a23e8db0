"""Stream sets: streams side by side that share the topics of a write. Pure.

A topic belongs to the member with the number ``partition(topic)``, as the server's own subject mapping
``{{partition(n)}}`` computes it (FNV-1a of the whole subject, modulo n): other programs reach the same member when the
account maps their subjects. A message travels to ``stream-set.<set>.<number>.<topic>``, which the member takes; its
subject transform removes this prefix, so that the topic is stored as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import Int64s
from mama_spark.options.stream_names import StreamRange

FIRST_TOKEN = "stream-set"
#: Metadata of a member: the set that it belongs to, with all its members.
METADATA = "mama-spark.streams"

_OFFSET_BASIS, _PRIME = 2166136261, 16777619


class StreamSet:
    def __init__(self, streams: StreamRange) -> None:
        self.streams = streams
        self.name = "-".join(filter(None, (streams.before.strip("-_"), streams.after.strip("-_")))) or "streams"
        self._prefixes = [f"{FIRST_TOKEN}.{self.name}.{number}." for number in range(streams.count)]
        self._known: tuple[tuple[int, int, int], pa.Array, pa.Array, npt.NDArray[np.uint16]] | None = None

    def __repr__(self) -> str:
        return f"<StreamSet {self.streams}>"

    @property
    def longest_prefix(self) -> int:
        """Maximum number of bytes put before a topic."""
        return len(self._prefixes[-1])

    def streams_of(self, topics: Sequence[str]) -> list[str]:
        names = self.streams.names
        return [names[number] for number in partition(pa.array(topics, pa.string()), self.streams.count).tolist()]

    def stream_of_subject(self, subject: str) -> str:
        return self.streams.name(int(subject.split(".", 3)[2]))

    def route(self, topics: pa.DictionaryArray) -> tuple[pa.DictionaryArray, Int64s]:
        """Subjects of messages with these topics (without nulls), and the order in which to send them: by member, with
        the order of each topic kept, so that members store, and acknowledge, many at a time."""
        names = topics.dictionary
        values = names.buffers()[2]
        key = (values.address if values else 0, names.offset, len(names))
        if self._known is None or self._known[0] != key:
            members = partition(names, self.streams.count)
            prefixes = pa.array(self._prefixes).take(pa.array(members))
            made = pc.binary_join_element_wise(prefixes, names.cast(pa.string()), "").cast(names.type)
            self._known = (key, names, made, members.astype(np.uint16))  # the reference keeps the address valid
        _, _, subjects, members_of = self._known
        order: Int64s = np.argsort(members_of[topics.indices.to_numpy()], kind="stable")
        return pa.DictionaryArray.from_arrays(topics.indices, subjects), order

    def filter_of(self, number: int) -> str:
        return f"{self._prefixes[number]}>"

    def config_of(self, number: int) -> dict[str, Any]:
        """The configuration of a member, as the JetStream API has it."""
        return {
            "name": self.streams.name(number),
            "subjects": [self.filter_of(number)],
            "subject_transform": {"src": self.filter_of(number), "dest": ">"},
            "metadata": {METADATA: str(self.streams)},
        }


def partition(topics: pa.Array, count: int) -> Int64s:
    """Number of the member for each topic (text), as ``{{partition(count)}}`` of nats-server computes it."""
    data = topics.cast(pa.large_binary())
    ends = np.frombuffer(data.buffers()[1], np.int64)[data.offset : data.offset + len(data) + 1]
    topic_bytes = np.frombuffer(data.buffers()[2] or b"", np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    found = np.full(len(data), _OFFSET_BASIS, np.uint32)
    for place in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > place)
        found[rows] = (found[rows] ^ topic_bytes[starts[rows] + place]) * np.uint32(_PRIME)
    numbers: Int64s = (found % np.uint32(count)).astype(np.int64)
    return numbers
