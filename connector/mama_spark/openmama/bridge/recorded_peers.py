"""Discovery from the log of a recorder of OpenMAMA messages; each peer of the naming service is a source.

The naming service tells programs, not the sources that they publish. Peers that a recorder has not heard of since it
began are offline in the image: nobody saw them go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.openmama.wire.log.records import PEERS, RECORDER, MamaRecordKind, MamaRecords, decode_records
from mama_spark.openmama.wire.protocol.naming import NamingFrame, decode_naming

from ...discovery.recorded_discovery import RecordedDiscovery

UNSEEN = "not heard of since a recorder began"
_RESTARTS = (MamaRecordKind.STARTED, MamaRecordKind.STOPPED)


def peer_key(frame: NamingFrame) -> SourceKey:
    """Key of the source that stands for a peer: program and host, and the beginning of its uuid as number."""
    digits = frame.uuid.replace("-", "")[:16]
    try:
        number = int(digits, 16)
    except ValueError:
        number = int.from_bytes(frame.uuid.encode()[:8].ljust(8, b"\0"))
    return SourceKey(f"{frame.program}@{frame.host}", number)


class RecordedPeers(RecordedDiscovery):
    """The peers of an OpenMAMA recorder's log."""

    topics = (f"*.{PEERS}", f"*.{RECORDER}.*")
    announced_by = "peers are announced by OpenMAMA's naming service"

    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        recorded = decode_records(records.payloads)
        topics, payloads = records.topics.to_pylist(), records.payloads.to_pylist()
        kinds = recorded.heads["kind"]
        for row in np.flatnonzero(np.isin(kinds, (MamaRecordKind.PEER, *_RESTARTS))).tolist():
            source = _source(recorded, row)
            kind = DiscoveryEventKind.EVENT if kinds[row] in _RESTARTS else DiscoveryEventKind.RECORD
            at, sequence = int(records.times[row]), int(records.sequences[row])
            yield DiscoveryEvent(kind, at, origin, sequence, source, payloads[row], topics[row])

    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
        found: dict[SourceKey, DiscoveryEvent] = {}
        for records in log.read(first - 1, last, self.topics):
            for event in self.events(log.name, records):
                if event.source is not None:
                    found[event.source] = event
                elif _begins(event):
                    found = {key: replace(known, info=UNSEEN) for key, known in found.items()}
        return found


def _begins(event: DiscoveryEvent) -> bool:
    return event.payload is not None and event.payload[5:6] == bytes([MamaRecordKind.STARTED])


def _source(recorded: MamaRecords, row: int) -> SourceKey | None:
    if recorded.heads["kind"][row] != MamaRecordKind.PEER:
        return None
    try:
        return peer_key(decode_naming(recorded.body(row)))
    except BadMessage:
        return None
