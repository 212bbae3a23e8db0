"""Which rows the answered tokens of one range of sends are."""

from __future__ import annotations

import numpy as np
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.sending.send_index import SendRange

from tests.support.tables import each

FIRST, N = 100, 8


@each("answered", [[0], [7], [0, 1, 2], [2, 3, 4], [0, 2, 3], [1, 4, 7], [0, 7], list(range(8))])
@each("rows", [slice(10, 10 + N), np.array([3, 1, 4, 15, 9, 2, 6, 5])])
def test_each_token_is_the_row_that_was_sent_with_it(rows: slice, answered: list[int]) -> None:
    sends = SendRange(FIRST, FIRST + N, FlightBatch(20), rows, 0.0)
    everything = np.arange(20)
    picked = everything[sends.pick(FIRST + np.array(answered))]
    assert picked.tolist() == everything[rows][answered].tolist()
