"""Options of ``mamapub``: how messages are acknowledged, and the ids by which a broker knows them again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..scopes import BATCHES, STORED
from ..values import boolean, integer, one_of, single_token, string, text

_GROUP = "Delivery"


@dataclass(frozen=True, repr=False)
class IdentityOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`", one_of("auto", "message", "batch", "none"), "auto", _GROUP,
        "`message`: an acknowledgement with sequence and duplicate flag for each row. `batch`: fast ingest, "
        "acknowledged in runs, no sequences. `none`: fire and forget. `auto`: `batch` where `dedup` is off and "
        "stream and server allow it (and while they do), else `message`. `batch` together with ids is refused on "
        "replicated streams, where the server may count as stored what is only proposed.",
    )  # fmt: skip
    dedup: bool = option(
        "boolean", boolean, True, _GROUP,
        "Send ids that the broker deduplicates on, so that a resend stores nothing twice.",
    )  # fmt: skip
    id_column: str | None = option(
        "column", string, None, _GROUP,
        "Column with the id of each message, string or integer, in place of default ids. Rows of a write that share an "
        "id are one message to the broker, which keeps the first. Empty: no column. No column is taken for its name.",
        shown="",
    )  # fmt: skip
    on_duplicate_id: str | None = option(
        "`fail`, `warn`", one_of("fail", "warn"), None, _GROUP,
        "A row with an id that its task has sent before (a doubled id): `fail`: the row fails and is not sent, and "
        "`onError` says what follows. `warn`: it is sent, and the broker may drop it. Both count it, and the flight "
        "log says so in `info`.", shown="`fail`",
    )  # fmt: skip
    id_prefix: str | None = option(
        "text", text, None, _GROUP,
        "First part of default ids. Give a constant one to make ids stable over re-runs of a batch job.",
        shown="query id or run id",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "text", text, None, _GROUP,
        "With `txnVersion`: identity of a batch write that may be repeated (Delta's names).", scope=BATCHES,
    )  # fmt: skip
    txn_version: int | None = option(
        "integer", integer(0, 2**63 - 1), None, _GROUP,
        "With `txnAppId`: rises with each batch, e.g. the batch id.", scope=BATCHES,
    )  # fmt: skip
    exactly_once: bool = option(
        "boolean", boolean, False, _GROUP,
        "Store each row of a batch once, however long after an outage it is repeated: a repetition first reads from "
        "the stream which rows are there, and publishes the others "
        "([what that promises and costs](../explanation/delivery.md#exactly-once)). Needs `dedup=true`; batch writes "
        "are recognised by `txnAppId` and `txnVersion`.", scope=STORED,
    )  # fmt: skip
    on_retention: str = option(
        "`fail`, `publish`", one_of("fail", "publish"), "fail", _GROUP,
        "With `exactlyOnce`, when messages of the batch may have been removed before they were read back: fail, or "
        "publish all rows that are not found, of which some may then be stored twice.", scope=STORED,
    )  # fmt: skip
    batches_stream: str = option(
        "text", single_token, "MAMA_BATCHES", _GROUP,
        "With `exactlyOnce`: the stream that keeps where each batch began. Made when it is missing; over Malamute the "
        "broker's configuration must have it stored (engine `durable` or `jetstream`).",
        shown="`MAMA_BATCHES`", scope=STORED,
    )  # fmt: skip
