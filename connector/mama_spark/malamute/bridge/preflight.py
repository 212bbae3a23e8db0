"""``mama check`` of a Malamute broker: check what can be checked without publishing or creating a stream."""

from __future__ import annotations

import time
from dataclasses import replace

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import FEATURES
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.malamute.protocol.log_query import LogQuery, Op, parse_numbers

from .frames import check
from .settings import MalamuteSettings

_FEATURE_TEXTS = {
    Feature.ACKS: "acknowledges messages",
    Feature.HEADERS: "carries ids and headers",
    Feature.LOG: "is read back",
    Feature.DISCOVERY: "keeps records of discovery",
}


def check_server(settings: MalamuteSettings, topics: list[str] | None = None) -> list[tuple[bool, str]]:
    """The checks in order: whether each succeeded, and a text. Ends at the first that failed."""
    found: list[tuple[bool, str]] = []
    connection = ClientConnection(
        replace(settings.connection, features=FEATURES & ~Feature.CREDIT | Feature.LOG | Feature.DISCOVERY)
    )
    try:
        connection.open(settings.connect_timeout)
        features = connection.machine.features
        found.append((True, f"connection: {connection.endpoint}"))
        found.append((True, f"security: {_security(settings)}"))
        found.append((True, f"broker: {_broker(features)}"))
        if topics:
            bad = check(MessageBatch.of(topics, [b""] * len(topics)), Feature.HEADERS in features)
            found += [(False, f"topic: {error}") for _, error in bad]
        if settings.stream is None:
            found.append((True, "stream: none is named, so every row must name its own, in a column stream"))
        elif Feature.LOG in features:
            found.append((True, f"stream: {settings.stream}, {_stream(connection, settings)}"))
        else:
            found.append((True, f"stream: {settings.stream}, which the first write makes if it is missing"))
        if not features and settings.dedup:
            found.append((True, "warning: this broker stores nothing, so repeats are not recognised (dedup)"))
    except MamaError as e:
        found.append((False, str(e)))
    finally:
        connection.close(settings.connect_timeout)
    return found


def _security(settings: MalamuteSettings) -> str:
    if settings.connection.curve_server_key is not None:
        return "CURVE, encrypted"
    if settings.connection.user is not None:
        return "PLAIN, by user and password; nothing is encrypted"
    return "none: everybody may connect, nothing is encrypted"


def _broker(features: Feature) -> str:
    if not features:
        return "none of mama-spark: it accepts messages, and neither stores them nor carries ids and headers"
    return f"mama-spark's, which {', '.join(text for feature, text in _FEATURE_TEXTS.items() if feature in features)}"


def _stream(connection: ClientConnection, settings: MalamuteSettings) -> str:
    """The query does not create the stream."""
    query = LogQuery(Op.BOUNDS, 0, (settings.stream or "").encode())
    answer = connection.wait_for_answer(connection.ask(query, time.monotonic() + settings.connect_timeout))
    if answer.code == StatusCode.SUCCESS:
        (first, last), _ = parse_numbers(answer.body, 2)
        return f"stored, numbers {first} to {last}" if last >= first > 0 else "stored, empty"
    reason, engine = (text.decode("utf-8", "replace") for text in (answer.reason, answer.identity))
    if answer.code in (StatusCode.NOT_IMPLEMENTED, StatusCode.INTERNAL_ERROR) and engine:
        return f"stored by the engine {engine}: {reason}"
    if answer.code == StatusCode.NOT_IMPLEMENTED:
        return f"in memory: acknowledged is accepted, not stored ({reason})"
    if answer.code == StatusCode.FAILED:
        return "which is not there yet: the first write makes it"
    raise ConfigError(f"stream {settings.stream}: {reason}")
