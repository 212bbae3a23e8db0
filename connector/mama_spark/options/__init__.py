"""Options, declared once: type, default, range and documentation of each stand in its declaration, and parsing,
nearest-name errors, the redacted ``repr`` and ``docs/reference/options.md`` come from it."""

from .declare import SPARK_KEYS, Options, camel, nearest, option_names
from .document import markdown
from .reading import DiscoveryOptions, ReadOptions, SubscribeOptions
from .sink import SinkOptions
from .transport import TransportOptions
from .urls import SCHEMES, redact_url
from .values import duration

__all__ = [
    "SCHEMES",
    "SPARK_KEYS",
    "DiscoveryOptions",
    "Options",
    "ReadOptions",
    "SinkOptions",
    "SubscribeOptions",
    "TransportOptions",
    "camel",
    "duration",
    "markdown",
    "nearest",
    "option_names",
    "redact_url",
]
