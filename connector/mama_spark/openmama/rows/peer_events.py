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


def discovery_row(change: DiscoveryEvent) -> tuple[DiscoveryRow, int]:
    """The row of a recorded event, and when the recorder received it: microseconds since the epoch, 0 where it does not
    say."""
    recorded = decode_records(pa.array([change.payload], pa.binary()))
    kind = int(recorded.heads["kind"][0])
    if kind == MamaRecordKind.PEER:
        row = _peer_row(recorded.body(0), int(recorded.heads["cause"][0]), change.info)
    else:
        row = DiscoveryRow(RESTART, STARTED if kind == MamaRecordKind.STARTED else STOPPED)
    return row, int(recorded.heads["received"][0]) // 1000


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
