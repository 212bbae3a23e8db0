"""A refusal with 502 passes, any other is final, wherever the broker refuses."""

from __future__ import annotations

import pytest
from mama_spark.bridges.malamute import log_queries, pool
from mama_spark.bridges.malamute.refusals import passes, refused
from mama_spark.bridges.malamute.settings import MalamuteSettings
from mama_spark.errors import ConfigError, MamaError, NotReady, Rejected, Unavailable
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import StatusCode


@pytest.mark.parametrize("code", list(StatusCode))
def test_only_an_internal_error_passes(code: StatusCode, monkeypatch: pytest.MonkeyPatch) -> None:
    may_pass = code == 502
    assert passes(code) is may_pass
    assert type(refused(code, "why")) is (Unavailable if may_pass else ConfigError)
    refusal = CallFailed("connecting", code, b"why")
    assert type(pool.stream_error("st", refusal)) is (NotReady if may_pass else Rejected)

    def refuses(settings: object, timeout: float) -> None:
        raise refusal

    monkeypatch.setattr(pool.POOL, "checkout", refuses)
    queries = log_queries.LogQueries(MalamuteSettings(ConnectionSettings(("mlp://127.0.0.1:1",))), 1.0)
    with pytest.raises(MamaError, match="why") as caught:
        queries.open()
    assert type(caught.value) is (Unavailable if may_pass else ConfigError)
