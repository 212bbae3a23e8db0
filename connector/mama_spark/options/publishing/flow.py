"""Options of ``mamapub``: the window, time-outs, resends and order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..values import duration, integer, one_of, rate

_GROUP = "Delivery"


@dataclass(frozen=True, repr=False)
class FlowOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    max_in_flight: int = option(
        "integer", integer(1, 1_000_000), 4096, _GROUP, "Messages of a partition that wait for an acknowledgement."
    )
    refill_allowed_at: int | None = option(
        "integer", integer(0, 1_000_000), None, _GROUP,
        "A full window lets in more when this many or fewer are left.", shown="half of `maxInFlight`",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 5.0, _GROUP, "Wait for the acknowledgement of each send.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _GROUP, "Longest wait of the publisher's loop before it looks again.", shown="100ms"
    )
    hold_pause_time: float = option(
        "duration", duration, 0.1, _GROUP, "Longest pause while the window is full; settlements end it.", shown="100ms"
    )
    retry_attempts: int | None = option(
        "integer", integer(0, 1_000_000), None, _GROUP, "Resends of one message; 0 = never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _GROUP, "Wait before the first resend; doubles from there.", shown="250ms"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _GROUP, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _GROUP, "No resend later than this after the first send.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`", one_of("resend", "report"), "resend", _GROUP,
        "What to do with a message whose acknowledgement is lost when `dedup` is off: send it again (it may be stored "
        "twice), or settle it as `timeout`.",
    )  # fmt: skip
    on_unavailable: str = option(
        "`fail`, `wait`", one_of("fail", "wait"), "fail", _GROUP,
        "What to do when the middleware is away, or answers but stores nothing (its disk is full). `fail`: nothing was "
        "acknowledged for `retryDeadline`, so the task fails, and Spark tries it again. `wait`: keep the messages and "
        "warn every 30 seconds until they are stored, however long it takes; `retryDeadline` counts only while "
        "messages are stored.",
    )  # fmt: skip
    order: str = option(
        "`none`, `partition`", one_of("none", "partition"), "none", _GROUP,
        "`partition`: rows of a partition are stored in their order, also over resends.",
    )  # fmt: skip
    max_rate_per_partition: float | None = option(
        "number", rate, None, _GROUP, "Messages a second of each partition.", shown="unlimited"
    )
