"""Tango: rows become records of a log, which an event source (``mama tango-source``) serves to Tango's clients.

``columns`` says what values of a DataFrame are in Tango, ``encode`` makes records of them, ``bridge`` appends these
through the bridge of the log.
"""

from urllib.parse import urlsplit

from mama_spark.bridge import PublisherBridge
from mama_spark.options import SinkOptions
from mama_spark.tango.log.records import PREFIX

from .bridge import TangoBridge
from .row_codec import RecordCodec

__all__ = ["RecordCodec", "TangoBridge", "publisher_bridge", "row_codec"]


def publisher_bridge(o: SinkOptions, log: PublisherBridge) -> TangoBridge:
    """:param log: publishes to the log of the options"""
    return TangoBridge(log)


def row_codec(o: SinkOptions) -> RecordCodec:
    return RecordCodec(urlsplit(o.url[0]).netloc, o.topic_prefix or PREFIX)
