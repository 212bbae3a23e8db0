"""Converts records of peers of OpenMAMA's naming service, from the log of a recorder, to rows of ``mamadiscovery``.
Pure.

A peer is a source: ``capabilities`` has program, host, pid, uuid and endpoint. It is SUSPECT when nothing was heard of
it for some seconds, and OFFLINE when it took its leave or fell silent for longer.
"""

from __future__ import annotations

import pyarrow as pa

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind
from mama_spark.mama.discovery.discovery_rows import (
    BAD_RECORD,
    SOURCE,
    DiscoveryRow,
    DiscoveryRowReader,
    shown_state,
)
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.openmama.wire.log.records import MamaPeerState, MamaRecordKind, decode_records
from mama_spark.openmama.wire.protocol.naming import decode_naming

RESTART, STARTED, STOPPED = "restart", "recorder_started", "recorder_stopped"
_STATES = {
    MamaPeerState.ONLINE: shown_state(None),
    MamaPeerState.SUSPECT: shown_state(DiscoveryEventKind.SUSPECT),
    MamaPeerState.OFFLINE: shown_state(DiscoveryEventKind.OFFLINE),
}
_DESCRIBED = ("program", "host", "pid", "uuid", "endpoint")


class OpenMamaReader(DiscoveryRowReader):
    """See :class:`~mama_spark.mama.discovery.discovery_rows.DiscoveryRowReader`."""

    BRIDGE = "openmama"

    def row(self, change: DiscoveryEvent) -> DiscoveryRow:
        if change.kind not in (DiscoveryEventKind.RECORD, DiscoveryEventKind.EVENT):
            return super().row(change)
        recorded = decode_records(pa.array([change.payload], pa.binary()))
        kind = int(recorded.heads["kind"][0])
        at = int(recorded.heads["received"][0]) // 1000 or change.at
        if kind == MamaRecordKind.PEER:
            row = _peer_row(recorded.body(0), int(recorded.heads["cause"][0]), change.info)
        else:
            row = DiscoveryRow(RESTART, STARTED if kind == MamaRecordKind.STARTED else STOPPED)
        name, number = change.source if change.source is not None else (None, None)
        return self._of(change, row._replace(source_name=name, source_id=number), at or None)


def _peer_row(body: bytes, cause: int, unseen: str | None) -> DiscoveryRow:
    """:param unseen: why the peer is not there any more, although its last record does not say so"""
    try:
        frame, known = decode_naming(body), MamaPeerState(cause)
    except (BadMessage, ValueError) as error:
        return DiscoveryRow(SOURCE, BAD_RECORD, info=str(error)[:1000])
    gone = unseen is not None and known is not MamaPeerState.OFFLINE
    event, state, data_state = _STATES[MamaPeerState.OFFLINE if gone else known]
    described = {name: str(getattr(frame, name)) for name in _DESCRIBED}
    return DiscoveryRow(
        SOURCE, event, source_state=state, source_data_state=data_state, capabilities=described,
        info=unseen if gone else None,
    )  # fmt: skip
