"""Discovery from the log of a recorder of OpenMAMA messages. Each peer of the naming service is a source, SUSPECT after
some seconds of silence, OFFLINE after its leave or a longer silence; its ``capabilities`` are program, host, pid, uuid
and endpoint.

The naming service names programs, not the sources that they publish. Peers that a recorder has not heard since its
start are offline in the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.mama.discovery.discovery_rows import BAD_RECORD, SOURCE, DiscoveryRow, recorder_row, shown_state
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.openmama.wire.naming import NamingFrame, PeerPresence, decode_naming
from mama_spark.openmama.wire.records import PEERS, RECORDER, MamaRecordKind, MamaRecords, decode_records

from ..discovery.recorded_discovery import RecordedDiscovery

UNSEEN = "not heard of since a recorder began"
_RESTARTS = (MamaRecordKind.STARTED, MamaRecordKind.STOPPED)


def peer_key(frame: NamingFrame) -> SourceKey:
    """Key of the source that stands for a peer: program and host; the beginning of its uuid is the number."""
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


_STATES = {
    PeerPresence.ONLINE: shown_state(None),
    PeerPresence.SUSPECT: shown_state(DiscoveryEventKind.SUSPECT),
    PeerPresence.OFFLINE: shown_state(DiscoveryEventKind.OFFLINE),
}
_DESCRIBED = ("program", "host", "pid", "uuid", "endpoint")


def discovery_row(change: DiscoveryEvent) -> tuple[DiscoveryRow, int]:
    """The row of a recorded event, and its time of receipt: microseconds since the epoch, 0 if it is not stated."""
    recorded = decode_records(pa.array([change.payload], pa.binary()))
    kind = int(recorded.heads["kind"][0])
    if kind == MamaRecordKind.PEER:
        row = _peer_row(recorded.body(0), int(recorded.heads["cause"][0]), change.info)
    else:
        row = recorder_row(kind == MamaRecordKind.STARTED)
    return row, int(recorded.heads["received"][0]) // 1000


def _peer_row(body: bytes, cause: int, unseen: str | None) -> DiscoveryRow:
    """Discovery row of a peer's record; event ``BAD_RECORD`` if the record cannot be decoded.

    :param body: naming frame of the record
    :param cause: value of :class:`PeerPresence`
    :param unseen: why the peer counts as OFFLINE, although its last record does not say so; None: as the record says
    """
    try:
        frame, known = decode_naming(body), PeerPresence(cause)
    except (BadMessage, ValueError) as error:
        return DiscoveryRow(SOURCE, BAD_RECORD, info=str(error))
    gone = unseen is not None and known is not PeerPresence.OFFLINE
    event, state, data_state = _STATES[PeerPresence.OFFLINE if gone else known]
    described = {name: str(getattr(frame, name)) for name in _DESCRIBED}
    return DiscoveryRow(
        SOURCE, event, source_state=state, source_data_state=data_state, capabilities=described,
        info=unseen if gone else None,
    )  # fmt: skip
