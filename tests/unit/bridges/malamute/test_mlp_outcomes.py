"""What a PONG says of the messages before it."""

from __future__ import annotations

import numpy as np
from mama_spark.bridge import PollResult
from mama_spark.bridges.malamute.bridge import _Chunk, _report_outcomes
from mama_spark.bridges.malamute.pool import WritableStream
from mama_spark.errors import OutcomeUnknown
from mama_spark.malamute.client.calls import Call
from mama_spark.malamute.protocol.commands import Ping
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome

from tests.support.tables import each

ACCEPTED = (AckRun(StoreOutcome.ACCEPTED, 3),)


@each("acks", [(), ACCEPTED])
@each("stored", [False, True])
def test_messages_to_a_stored_stream_are_not_acknowledged_without_an_outcome(
    acks: tuple[AckRun, ...], stored: bool
) -> None:
    """The engine that had them has ended, and another one knows nothing of them."""
    call = Call(Ping(), 0.0)
    call.extension = Extension(acks=acks)
    chunk, polled = _Chunk(np.arange(3), "st", call, WritableStream(None, 0.0, stored)), PollResult()
    _report_outcomes(chunk, 1.0, polled)
    if stored:
        (refusals,) = polled.refusals
        assert (refusals.tokens.tolist(), type(refusals.error)) == ([0, 1, 2], OutcomeUnknown)
        assert not polled.acks
    else:
        assert [ack.tokens.tolist() for ack in polled.acks] == [[0, 1, 2]]
        assert not polled.refusals
