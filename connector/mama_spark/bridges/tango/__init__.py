"""Bridge to Tango: encodes rows as records of a log, which an event source (``mama tango-source``) serves."""

from urllib.parse import urlsplit

from mama_spark.bridge import PublisherBridge
from mama_spark.options import SinkOptions
from mama_spark.tango.log.records import PREFIX

from .bridge import TangoBridge
from .row_codec import RecordCodec

__all__ = ["RecordCodec", "TangoBridge", "publisher_bridge", "row_codec"]


def publisher_bridge(o: SinkOptions, log: PublisherBridge) -> TangoBridge:
    """:param log: bridge of the log that the options name"""
    return TangoBridge(log)


def row_codec(o: SinkOptions) -> RecordCodec:
    return RecordCodec(urlsplit(o.url[0]).netloc, o.topic_prefix or PREFIX)
