"""Scopes of options: where one has an effect, in batches or streams, of which formats, over which bridges; elsewhere it
is an error. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..contracts.middlewares import MIDDLEWARES


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of one option; None = everywhere. ``streaming``: only in streams (True), only in batches (False);
    ``bridges``: ``memory`` takes the place of any of them."""

    streaming: bool | None = None
    formats: tuple[str, ...] | None = None
    bridges: tuple[str, ...] | None = None

    def text(self) -> str:
        """Text for the documentation; empty = everywhere."""
        kind = {None: "", True: "streams", False: "batches"}[self.streaming]
        bridges = "" if self.bridges is None else ", ".join(MIDDLEWARES[bridge].title for bridge in self.bridges)
        return "; ".join(part for part in (kind, bridges) if part)


@dataclass(frozen=True, slots=True)
class Use:
    """The use for which options are given.

    :ivar what: text for messages, as in "has no effect in {what}"
    :ivar streaming: a stream (True), a batch (False), or either
    :ivar takes: fields that have an effect besides those of the connection; None = all that the scope allows
    :ivar spark_keys: keys that Spark itself hands over, in lower case
    :ivar is_job: this is a whole read or write: an option that needs another one is an error without it
    """

    what: str
    streaming: bool | None = None
    takes: frozenset[str] | None = None
    spark_keys: frozenset[str] = frozenset()
    is_job: bool = True


EVERYWHERE = Scope()
STREAMS, BATCHES = Scope(streaming=True), Scope(streaming=False)
NATS, MALAMUTE = Scope(bridges=("nats",)), Scope(bridges=("malamute",))
STORED = Scope(bridges=("nats", "malamute"))
OPENMAMA = Scope(bridges=("openmama",))

#: A library call: some of the options, for a purpose that nobody told.
ANY_USE = Use("this call", is_job=False)
BATCH_READ, STREAM_READ = Use("a batch read", False), Use("a stream read", True)
BATCH_WRITE = Use("a batch write", False)
#: Spark hands over what ``writeStream`` was told by these two names.
STREAM_WRITE = Use("a stream write", True, spark_keys=frozenset({"checkpointlocation", "queryname"}))
#: A read before Spark has said whether it is a batch or a stream, and the configuration of a job.
ANY_READ = Use("a read")
ANY_WRITE = Use("a write", spark_keys=STREAM_WRITE.spark_keys)


def command(name: str, *takes: str) -> Use:
    """The use by a command; ``takes``: fields that have an effect besides those of the connection."""
    return Use(f"mama {name}", takes=frozenset(takes), is_job=False)


#: Options of Spark that say where data is; here the url and the topics do.
PATHS = frozenset({"path", "paths"})

#: Options of Spark's Kafka connector, in lower case, and what stands in their place; one that ends in ``.`` is a
#: family of them. Empty: nothing does.
KAFKA: Mapping[str, str] = MappingProxyType(
    {
        "kafka.bootstrap.servers": "url", "subscribe": "topics", "subscribepattern": "topics", "assign": "stream",
        "startingoffsetsbytimestamp": "startingTimestamp", "endingoffsetsbytimestamp": "endingTimestamp",
        "startingoffsetsbytimestampstrategy": "", "kafkaconsumer.polltimeoutms": "waitTimeout",
        "fetchoffset.numretries": "waitTimeout", "fetchoffset.retryintervalms": "waitTimeout",
        "groupidprefix": "progressConsumer", "kafka.group.id": "progressConsumer",
        "maxrecordsperpartition": "minPartitions", "includetimestamp": "", "kafka.acks": "ackMode",
        "kafka.enable.idempotence": "dedup", "kafka.transactional.id": "txnAppId", "kafka.retries": "retryAttempts",
        "kafka.delivery.timeout.ms": "retryDeadline", "kafka.request.timeout.ms": "waitTimeout",
        "kafka.max.in.flight.requests.per.connection": "maxInFlight", "kafka.linger.ms": "pack",
        "kafka.batch.size": "packMaxBytes", "kafka.max.poll.records": "maxOffsetsPerTrigger",
        "kafka.auto.offset.reset": "startingOffsets", "kafka.security.protocol": "tls:// in the url",
        "kafka.sasl.": "user and password", "kafka.ssl.truststore.": "tlsCa",
        "kafka.ssl.keystore.": "tlsCert and tlsKey", "kafka.ssl.": "tlsCa, tlsCert and tlsKey", "kafka.": "",
    }
)  # fmt: skip


def kafka_successor(low: str) -> str | None:
    """The option in place of one of Spark's Kafka connector, given in lower case; None: it is none of them."""
    if low in KAFKA:
        return KAFKA[low]
    return next((instead for name, instead in KAFKA.items() if name.endswith(".") and low.startswith(name)), None)
