"""An option that would have no effect where it is given is an error that says so, and names what was meant."""

from __future__ import annotations

import pytest
from mama_spark.cli import main as cli
from mama_spark.contracts.errors import OptionError
from mama_spark.options import (
    ANY_READ,
    ANY_USE,
    ANY_WRITE,
    BATCH_READ,
    BATCH_WRITE,
    FORMATS,
    STREAM_READ,
    STREAM_WRITE,
    Use,
    camel,
    markdown,
)
from mama_spark.options.declare import declarations

from tests.support.tables import each

PUB, SUB, SEE = "mamapub", "mamasub", "mamadiscovery"
TOPICS = {"topics": "a"}


@each(
    ("name", "use", "given", "parts"),
    [
        # streams and batches
        (SUB, STREAM_READ, {**TOPICS, "endingOffsets": "latest"}, ["endingOffsets has no effect", "batches"]),
        (SUB, BATCH_READ, {**TOPICS, "maxOffsetsPerTrigger": "1"}, ["maxOffsetsPerTrigger has no effect", "streams"]),
        (SUB, BATCH_READ, {**TOPICS, "MAXROWSPERTRIGGER": "1"}, ["maxRowsPerTrigger has no effect in a batch read"]),
        (SUB, BATCH_READ, {**TOPICS, "progressConsumer": "x"}, ["progressConsumer has no effect in a batch read"]),
        (SEE, BATCH_READ, {"startingOffsets": "latest"}, ["startingOffsets has no effect in a batch read"]),
        (SEE, BATCH_READ, {"failOnDataLoss": "false"}, ["failOnDataLoss has no effect in a batch read"]),
        (PUB, STREAM_WRITE, {"txnAppId": "a", "txnVersion": "1"}, ["txnAppId has no effect in a stream write"]),
        # what Spark hands over
        (PUB, BATCH_WRITE, {"path": "/out"}, ["option path, which .save()", "mamapub", "url names the server"]),
        (PUB, STREAM_WRITE, {"path": "/out"}, ["option path", ".start()", "a stream write"]),
        (SUB, ANY_READ, {**TOPICS, "path": "/in"}, ["option path", ".load()"]),
        (SUB, ANY_READ, {**TOPICS, "paths": '["/a","/b"]'}, ["option path"]),
        (PUB, BATCH_WRITE, {"checkpointLocation": "/c"}, ["checkpointLocation is of writeStream", "a batch write"]),
        (SUB, STREAM_READ, {**TOPICS, "queryName": "q"}, ["queryName is of writeStream"]),
        # formats
        (SUB, ANY_READ, {**TOPICS, "flightLog": "/l"}, ["option flightLog is of mamapub, not of mamasub"]),
        (SUB, ANY_READ, {**TOPICS, "storage.region": "x"}, ["option storage.region is of mamapub"]),
        (SUB, ANY_READ, {**TOPICS, "eventsStream": "E"}, ["option eventsStream is of mamadiscovery and mamapub"]),
        (SUB, ANY_READ, {"topic": "a"}, ["option topic is of mamapub, not of mamasub", "'topics'"]),
        (PUB, BATCH_WRITE, {"startingOffsets": "earliest"}, ["startingOffsets is of mamasub and mamadiscovery"]),
        (PUB, BATCH_WRITE, {"topics": "a"}, ["option topics is of mamasub, not of mamapub", "'topic'"]),
        # middlewares
        (PUB, BATCH_WRITE, {"url": "mlp://h/s", "token": "t"}, ["token is for NATS", "of Malamute"]),
        (PUB, BATCH_WRITE, {"curveServerKey": "k"}, ["curveServerKey is for Malamute, and the url is of NATS"]),
        (SUB, STREAM_READ, {"url": "mlp://h/s", "progressConsumer": "x"}, ["progressConsumer is for NATS"]),
        (SEE, STREAM_READ, {"url": "mlp://h", "advisories": "false"}, ["advisories is for NATS"]),
        # options that need others
        (PUB, BATCH_WRITE, {"sourceName": "x"}, ["sourceName has no effect without announce=true"]),
        (PUB, BATCH_WRITE, {"eventsStream": "E"}, ["eventsStream has no effect without announce=true"]),
        (PUB, STREAM_WRITE, {"errorTolerance": "all"}, ["errorTolerance has no effect without onError"]),
        (PUB, BATCH_WRITE, {"storage.region": "eu"}, ["storage.* has no effect without flightLog or deadLetterTable"]),
        (PUB, BATCH_WRITE, {"topicEvents": "off"}, ["topicEvents has no effect without flightLog or announce"]),
        (PUB, BATCH_WRITE, {"retryAttempts": "0", "retryBackoff": "1s"}, ["retryBackoff has no effect without retry"]),
        (SUB, ANY_READ, {**TOPICS, "unpack": "false", "failOnCorrupt": "true"}, ["failOnCorrupt has no effect with"]),
        (SUB, ANY_READ, {"stream": "T", "tango": "true", "unpack": "false"}, ["unpack has no effect with tango=true"]),
        (SEE, STREAM_READ, {"tango": "true", "stream": "T", "discoveryTopic": "a"}, ["discoveryTopic has no effect"]),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_an_error(name: str, use: Use, given: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(OptionError) as e:
        FORMATS[name].parse(given, use)
    assert all(part in str(e.value) for part in parts), str(e.value)


@each(
    ("name", "kafka", "ours"),
    [
        (SUB, "subscribe", "you mean topics"),
        (SUB, "subscribePattern", "you mean topics"),
        (SUB, "assign", "you mean stream"),
        (SUB, "kafka.bootstrap.servers", "you mean url"),
        (SUB, "startingOffsetsByTimestamp", "you mean startingTimestamp"),
        (SUB, "kafka.group.id", "you mean progressConsumer"),
        (SUB, "kafka.sasl.jaas.config", "you mean user and password"),
        (SUB, "kafka.fetch.min.bytes", "nothing here takes its place"),
        (PUB, "kafka.acks", "you mean ackMode"),
        (PUB, "kafka.bootstrap.servers", "you mean url"),
        (PUB, "subscribe", "nothing here takes its place"),
        (PUB, "kafka.ssl.truststore.location", "you mean tlsCa"),
    ],
)
def test_names_of_kafka_s_connector_are_translated(name: str, kafka: str, ours: str) -> None:
    with pytest.raises(OptionError) as e:
        FORMATS[name].parse({kafka: "x"}, ANY_USE)
    assert f"option {kafka!r} is of Spark's Kafka connector" in str(e.value)
    assert ours in str(e.value)


@each(
    ("name", "use", "given"),
    [
        (PUB, STREAM_WRITE, {"checkpointlocation": "/c", "queryname": "q"}),
        (PUB, ANY_WRITE, {"txnAppId": "a", "txnVersion": "1", "checkpointLocation": "/c"}),
        (PUB, BATCH_WRITE, {"url": "tango://lab", "log": "nats://h/S", "credentials": "c", "createStream": "true"}),
        (PUB, BATCH_WRITE, {"url": "mlp://h/s", "createStream": "true"}),  # brokers make streams in any case
        (PUB, BATCH_WRITE, {"announce": "true", "sourceName": "x", "eventsStream": "E"}),
        (PUB, ANY_USE, {"eventsStream": "E", "storage.region": "eu"}),
        (SUB, BATCH_READ, {**TOPICS, "endingOffsets": '{"A": 3}'}),
        (SUB, STREAM_READ, {**TOPICS, "maxOffsetsPerTrigger": "3", "progressConsumer": "x"}),
        (SUB, ANY_READ, {**TOPICS, "endingOffsets": "latest", "maxOffsetsPerTrigger": "3"}),
        (SUB, ANY_READ, {**TOPICS, "url": "memory://x", "credentials": "c"}),
        (SEE, STREAM_READ, {"startingOffsets": "latest", "advisories": "false", "eventsStream": "E"}),
        (SEE, BATCH_READ, {"tango": "true", "stream": "T"}),
    ],
)
def test_an_option_with_an_effect_is_taken(name: str, use: Use, given: dict[str, str]) -> None:
    FORMATS[name].parse(given, use)


def test_what_a_file_says_of_a_transport_is_left_out_where_it_has_no_effect() -> None:
    """One transport for writes and reads, in batches and streams"""
    file = {"maxOffsetsPerTrigger": "7", "curveServerKey": "k" * 40, "failOnDataLoss": "false"}
    shared = [name.lower() for name in file]
    stream = FORMATS[SUB].parse({**TOPICS, **file}, STREAM_READ, shared)
    batch = FORMATS[SUB].parse({**TOPICS, **file}, BATCH_READ, shared)
    assert "maxOffsetsPerTrigger=7" in repr(stream)
    assert "maxOffsetsPerTrigger" not in repr(batch)
    FORMATS[PUB].parse({"sourceName": "x", "storage.region": "eu"}, BATCH_WRITE, ["sourcename", "storage.region"])


@each(
    ("arguments", "option"),
    [
        (["sub", "a.>", "-o", "startingOffsets=earliest"], "startingOffsets"),
        (["sub", "a.>", "-o", "progressConsumer=x"], "progressConsumer"),
        (["pub", "a", "-o", "flightLog=/l"], "flightLog"),
        (["pub", "a", "-o", "topicPrefix=x"], "topicPrefix"),
        (["sources", "--once", "-o", "maxOffsetsPerTrigger=5"], "maxOffsetsPerTrigger"),
        (["events", "-o", "startingOffsets=earliest"], "startingOffsets"),
        (
            ["record", "--url", "tango://db:10000", "--device", "a/b/c", "--to", "nats://h/S", "-o", "pack=lines"],
            "pack",
        ),
        (["tango-source", "nats://h/S", "-o", "failOnDataLoss=false"], "failOnDataLoss"),
    ],
)
def test_a_command_refuses_what_it_does_not_use(arguments: list[str], option: str) -> None:
    args = cli.parse(arguments)
    with pytest.raises(OptionError, match=f"option {option} has no effect in mama {arguments[0]}"):
        args.run(args)


def test_the_pages_say_where_an_option_has_an_effect() -> None:
    text = markdown()
    assert "| `endingOffsets` | `latest`, `now`, time, JSON (latest) | *Batches.* " in text
    assert "| `progressConsumer` | text | *Streams; NATS.* " in text
    subscribe = text[text.index("## `mamasub`") : text.index("## `mamadiscovery`")]
    assert "eventsStream" not in subscribe
    for name, options in FORMATS.items():
        for field, declared in declarations(options):
            assert not declared.is_of(options) or f"| `{camel(field)}`" in text, (name, field)
