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
        (SUB, BATCH_READ, {**TOPICS, "MAXROWSPERTRIGGER": "1"}, ["maxRowsPerTrigger has no effect in a batch read"]),
        (SEE, BATCH_READ, {"failOnDataLoss": "false"}, ["failOnDataLoss has no effect in a batch read"]),
        (PUB, STREAM_WRITE, {"txnAppId": "a", "txnVersion": "1"}, ["txnAppId has no effect in a stream write"]),
        # what Spark hands over
        (PUB, BATCH_WRITE, {"path": "/out"}, ["option path, which .save()", "mamapub", "url names the server"]),
        (SUB, ANY_READ, {**TOPICS, "paths": '["/a","/b"]'}, ["option path"]),
        (PUB, BATCH_WRITE, {"checkpointLocation": "/c"}, ["checkpointLocation is of writeStream", "a batch write"]),
        # formats
        (SUB, ANY_READ, {**TOPICS, "flightLog": "/l"}, ["option flightLog is of mamapub, not of mamasub"]),
        (SUB, ANY_READ, {**TOPICS, "storage.region": "x"}, ["option storage.region is of mamapub"]),
        (SUB, ANY_READ, {**TOPICS, "eventsStream": "E"}, ["option eventsStream is of mamadiscovery and mamapub"]),
        (SUB, ANY_READ, {"topic": "a"}, ["option topic is of mamapub, not of mamasub", "'topics'"]),
        # middlewares
        (PUB, BATCH_WRITE, {"url": "mlp://h/s", "token": "t"}, ["token is for NATS", "of Malamute"]),
        (PUB, BATCH_WRITE, {"curveServerKey": "k"}, ["curveServerKey is for Malamute, and the url is of NATS"]),
        # options that need others
        (PUB, BATCH_WRITE, {"sourceName": "x"}, ["sourceName has no effect without announce=true"]),
        (PUB, STREAM_WRITE, {"errorTolerance": "all"}, ["errorTolerance has no effect without onError"]),
        (PUB, BATCH_WRITE, {"storage.region": "eu"}, ["storage.* has no effect without flightLog or deadLetterTable"]),
        (PUB, BATCH_WRITE, {"topicEvents": "off"}, ["topicEvents has no effect without flightLog or announce"]),
        (PUB, BATCH_WRITE, {"retryAttempts": "0", "retryBackoff": "1s"}, ["retryBackoff has no effect without retry"]),
        (SUB, ANY_READ, {**TOPICS, "unpack": "false", "failOnCorrupt": "true"}, ["failOnCorrupt has no effect with"]),
        (SUB, ANY_READ, {"stream": "T", "tango": "true", "unpack": "false"}, ["unpack has no effect with tango=true"]),
        (SUB, ANY_READ, {"stream": "T", "omnm": "true", "unpack": "false"}, ["packs of the recorder are unpacked"]),
        (SUB, ANY_READ, {**TOPICS, "includeDeleted": "true"}, ["includeDeleted has no effect without latestPerTopic"]),
        (SUB, ANY_READ, {"bucket": "b", "unpack": "true"}, ["unpack has no effect with bucket"]),
        (SUB, ANY_READ, {**TOPICS, "maxDecompressedBytes": "7"}, ["maxDecompressedBytes has no effect without decom"]),
        (SUB, ANY_READ, {**TOPICS, "maxTriggerDelay": "5s"}, ["maxTriggerDelay has no effect without minOffsets"]),
        (SUB, ANY_READ, {**TOPICS, "parallelism": "7", "minPartitions": "9"}, ["no effect with minPartitions"]),
        (SUB, ANY_READ, {**TOPICS, "omnm": "true", "dictionary": "feed"}, ["dictionary has no effect without fields"]),
        (SUB, ANY_READ, {**TOPICS, "fields": "a int"}, ["option fields is for messages of OpenMAMA: omnm=true"]),
        (SEE, STREAM_READ, {"tango": "true", "stream": "T", "discoveryTopic": "a"}, ["discoveryTopic has no effect"]),
        # what is read, and from where
        (SUB, ANY_READ, {}, ["option topics (or stream) is needed"]),
        (SUB, ANY_READ, {"topics": "a..b"}, ["bad topic 'a..b'"]),
        (SUB, ANY_READ, {"topics": "B.t.1*"}, ["* stands for one whole part", "Read 'B.t.*' and filter"]),
        (SUB, ANY_READ, {"topics": "a.b>"}, ["Read 'a.>' and filter the rows"]),
        (SUB, ANY_READ, {"url": "mlp://h", "pattern": "x"}, ["pattern needs a stream"]),
        (SUB, ANY_READ, {"url": "mlp://h/s", "pattern": "x", **TOPICS}, ["topics and pattern exclude each other"]),
        (SUB, ANY_READ, {"stream": "s", "pattern": "x"}, ["option pattern is for Malamute"]),
        (SUB, ANY_READ, {"url": "memory://m", "bucket": "b"}, ["option bucket: memory has no key-value buckets"]),
        (SUB, ANY_READ, {"bucket": "b", "stream": "S"}, ["bucket and stream exclude each other"]),
        (SUB, ANY_READ, {"bucket": "b", "decompress": "true"}, ["bucket and decompress exclude each other"]),
        (SUB, ANY_READ, {"streams": "s-*", "latestPerTopic": "true"}, ["latestPerTopic and streams exclude"]),
        (SUB, ANY_READ, {"bucket": "b", "startingOffsets": "latest"}, ["and startingTimestamp have no effect with"]),
        (SUB, ANY_READ, {**TOPICS, "startingOffsets": "tomorrow"}, ["must be one of earliest, latest, now"]),
        (SUB, ANY_READ, {**TOPICS, "startingOffsets": '{"A": "x"}'}, ["wants a sequence"]),
        (SUB, ANY_READ, {**TOPICS, "startingOffsets": "{A: 1}"}, ["option startingOffsets is not JSON"]),
        (SUB, ANY_READ, {**TOPICS, "endingOffsets": "now", "endingTimestamp": "now"}, ["exclude each other"]),
        (SUB, ANY_READ, {**TOPICS, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, ["must be at most"]),
        # what becomes of messages
        (SUB, ANY_READ, {**TOPICS, "mode": "permissive", "unpack": "false"}, ["option mode has no effect here"]),
        (SUB, ANY_READ, {**TOPICS, "mode": "permissive", "failOnCorrupt": "true"}, ["mode and failOnCorrupt=true"]),
        (SUB, ANY_READ, {**TOPICS, "decompress": "true", "tango": "true"}, ["decompress has no effect with tango"]),
        (SUB, ANY_READ, {**TOPICS, "omnm": "true", "tango": "true"}, ["exclude each other"]),
    ],
)  # fmt: skip
def test_an_option_that_has_no_effect_or_does_not_go_with_others_is_an_error(
    name: str, use: Use, given: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(OptionError) as e:
        FORMATS[name].parse(given, use)
    assert all(part in str(e.value) for part in parts), str(e.value)


@each(
    ("name", "kafka", "ours"),
    [
        (SUB, "subscribe", "you mean topics"),
        (SUB, "kafka.bootstrap.servers", "you mean url"),
        (SUB, "kafka.sasl.jaas.config", "you mean user and password"),
        (SUB, "kafka.fetch.min.bytes", "nothing here takes its place"),
        (PUB, "subscribe", "nothing here takes its place"),
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
        (SUB, ANY_READ, {**TOPICS, "endingOffsets": '{"A": 3}', "maxOffsetsPerTrigger": "3"}),
        (SUB, ANY_READ, {**TOPICS, "url": "memory://x", "credentials": "c"}),
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
