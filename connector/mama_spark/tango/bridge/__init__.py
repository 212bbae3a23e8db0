"""Tango bridge: encodes rows as log records, which an event source (``mama tango-source``) serves."""

from urllib.parse import urlsplit

from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.options import SinkOptions
from mama_spark.tango.log.records import PREFIX

from .bridge import TangoBridge
from .row_codec import RecordCodec

__all__ = ["RecordCodec", "TangoBridge", "publisher_bridge", "row_codec"]


def publisher_bridge(o: SinkOptions, log: PublisherBridge) -> TangoBridge:
    """Make the publisher bridge.

    :param log: bridge of the log in option ``log``
    """
    return TangoBridge(log)


def row_codec(o: SinkOptions) -> RecordCodec:
    """Make the row codec from the options of a query."""
    return RecordCodec(urlsplit(o.url[0]).netloc, o.topic_prefix or PREFIX)
