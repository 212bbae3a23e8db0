"""One commit to a Delta table of this package: read the table, plan, add the parts; again after a conflict."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from ..contracts.backoff import Backoff
from ..contracts.errors import FlightLogError, Unavailable
from ..contracts.redaction import redact, safe_cause, secret_values
from .parts import Part
from .schema import PARTITION_COLUMNS, TableKind
from .storage import KEPT_TABLES, TableStore, check_table_schema, delta_fields, storage_errors

#: Attempts before a commit that always conflicts with others fails.
MAX_ATTEMPTS = 20
#: Key of the description of the write in the commits of the table.
_DESCRIPTION = "mamaSpark"
#: Commits that are searched for descriptions of writes: the newest.
_MOST_COMMITS = 200
#: Commits between two checkpoints where the table does not say, as in delta-rs.
DELTA_CHECKPOINT_INTERVAL = 100
#: Commits after which expired entries of the log are removed once: to find them, delta-rs lists the whole log, after
#: each commit unless told otherwise, and commits would get slower with their number.
CLEAN_EVERY = 100
#: Between two attempts: random, so that processes whose commits conflicted do not meet again.
CONFLICT = Backoff(0.02, 0.4, jitter=1.0)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit.

    :ivar version: version of the table afterwards
    :ivar committed, uncommitted: parts added as committed, and as not committed
    :ivar recorded: the app transaction had been recorded by another write, or another run of this one
    """

    version: int
    committed: int = 0
    uncommitted: int = 0
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that parts are committed to.

    :ivar fields: the columns named by ``flightLogColumns``, which the table may lack
    :ivar description: description of the write, which goes into its commits for readers; no secrets
    """

    kind: TableKind
    store: TableStore
    fields: Sequence[pa.Field]
    description: Mapping[str, Any] | None = None

    @property
    def what(self) -> str:
        """The option that names it."""
        return self.kind.option

    @property
    def schema(self) -> pa.Schema:
        return self.kind.schema(self.fields)

    @property
    def metadata(self) -> dict[str, str] | None:
        return None if self.description is None else {_DESCRIPTION: json.dumps(self.description, default=str)}

    def is_described_in(self, table: DeltaTable) -> bool:
        """Whether one of the newest commits is of this write."""
        return any({_DESCRIPTION: one.get(_DESCRIPTION)} == self.metadata for one in table.history(_MOST_COMMITS))


def described_writes(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Newest first; Delta keeps them for 30 days by default."""
    for commit in table.history(_MOST_COMMITS):
        text = commit.get(_DESCRIPTION)
        if isinstance(text, str):
            yield json.loads(text)


def seconds_since_run(table: DeltaTable, run_id: str) -> float | None:
    """Since the outcomes of this run were committed; None: no such run is among the newest commits."""
    for commit in table.history(_MOST_COMMITS):
        text = commit.get(_DESCRIPTION)
        if isinstance(text, str) and json.loads(text).get("run_id") == run_id:
            return max(0.0, time.time() - float(commit["timestamp"]) / 1000)
    return None


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The parts that one commit adds to the table as it was read, and the app transaction recorded with it;
    ``recorded``: as :attr:`CommitResult.recorded`."""

    committed: list[Part] = field(default_factory=list)
    uncommitted: list[Part] = field(default_factory=list)
    app: tuple[str, int] | None = None
    recorded: bool = False


def add_and_remove(
    table: DeltaTable,
    actions: list[AddAction | RemoveAction],
    app: tuple[str, int] | None = None,
    metadata: dict[str, str] | None = None,
    *,
    checkpoint: bool = True,
) -> int:
    """Commit the actions as the next version of the table, and write a checkpoint when one is due.

    :param checkpoint: False: the caller writes the checkpoints
    :returns: the new version
    :raises CommitFailedError: others have committed since the table was read
    """
    version: int = table.version() + 1  # without retries a commit is the next version, or conflicts
    table.create_write_transaction(
        actions,
        "append",
        Schema.from_arrow(pa.schema(table.schema().to_arrow())),
        partition_by=list(PARTITION_COLUMNS),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(*app)] if app else None, custom_metadata=metadata, max_commit_retries=0
        ),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=checkpoint, cleanup_expired_logs=None if version % CLEAN_EVERY == 0 else False
        ),
    )
    return version


def execute(
    target: TargetTable, make: Callable[[DeltaTable], CommitPlan], before_creating: Callable[[], None] = lambda: None
) -> CommitResult:
    """Read the table, plan, commit; repeat after a conflict with another commit."""
    for attempt in range(MAX_ATTEMPTS):
        with storage_errors(f"{target.what} {target.store.uri}", target.store.options):
            table = KEPT_TABLES.take(target.store) or target.store.table()
            if table is None:
                before_creating()
                table = _create(target)
            missing = check_table_schema(table, target.schema, target.what, frozenset(f.name for f in target.fields))
            plan = make(table)
            adds: list[AddAction | RemoveAction] = []
            adds += (add_action(p, True) for p in plan.committed)
            adds += (add_action(p, False) for p in plan.uncommitted)
            if not adds and plan.app is None:
                return CommitResult(table.version(), recorded=plan.recorded)
            try:
                _add_missing_columns(table, missing)
                kept = KEPT_TABLES.keeps(target.store)
                version = add_and_remove(table, adds, plan.app, target.metadata, checkpoint=not kept)
                due = kept and _checkpoint_is_due(table, version)
                KEPT_TABLES.committed(target.store, table, version, checkpoint=due)
                return CommitResult(version, len(plan.committed), len(plan.uncommitted), plan.recorded)
            except CommitFailedError as e:
                await_next_attempt(target.store, table.version(), e, attempt)
    raise Unavailable(
        f"{target.what} {target.store.uri}: {MAX_ATTEMPTS} attempts to commit met commits of others: give writes that "
        "run at the same time a table each"
    )


def await_next_attempt(store: TableStore, version: int, error: CommitFailedError, attempt: int) -> None:
    """Wait after a commit that met one of others; to be called within :func:`~.storage.storage_errors`.

    :param version: version of the table that was read
    :raises FlightLogError: nobody has committed since: what fails fails again
    """
    table = store.table()
    if table is not None and table.version() == version:
        raise FlightLogError(
            f"{redact(store.uri)}: the table takes no commit: {redact(str(error), secret_values(store.options))}; name "
            "another path, or undo what was set on the table"
        ) from safe_cause(error, secret_values(store.options))
    time.sleep(CONFLICT.delay(attempt))


def _checkpoint_is_due(table: DeltaTable, version: int) -> bool:
    interval = int(table.metadata().configuration.get("delta.checkpointInterval", DELTA_CHECKPOINT_INTERVAL))
    return (version + 1) % max(1, interval) == 0


def _create(target: TargetTable) -> DeltaTable:
    """Several processes may make it at once."""
    store = target.store
    store.require_free(target.what)
    store.ensure_folder()
    try:
        create_table_with_add_actions(
            store.uri,
            Schema(delta_fields(target.schema)),
            [],
            mode="ignore",
            partition_by=list(PARTITION_COLUMNS),
            storage_options=store.options,
            configuration={"delta.checkpointInterval": "20"},
        )
    except DeltaError:
        if store.table() is None:
            raise
    table = store.table()
    if table is None:
        raise Unavailable(f"{target.what} {store.uri}: the table was removed while it was written")
    return table


def _add_missing_columns(table: DeltaTable, missing: list[pa.Field]) -> None:
    if missing:
        if any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in missing):
            table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
        table.alter.add_columns(delta_fields(pa.schema(missing)))


def add_action(part: Part, committed: bool, data_change: bool = True) -> AddAction:
    """The action of Delta's log that adds a part; ``data_change``: no other file of the table has its rows."""
    low, high = part.min_time // 1000, -(-part.max_time // 1000)  # statistics of Delta have milliseconds
    stats = {
        "numRecords": part.rows,
        "minValues": {"event_time": _iso(low)},
        "maxValues": {"event_time": _iso(high)},
        "nullCount": {"event_time": 0},
    }
    return AddAction(
        path=part.path,
        size=part.size,
        partition_values={"event_date": part.event_date, "committed": "true" if committed else "false"},
        # Time of day: stamps.
        modification_time=time.time_ns() // 1_000_000,
        data_change=data_change,
        stats=json.dumps(stats),
    )


def _iso(ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
