"""Options, declared once: type, default, range and documentation of each stand in its declaration, and parsing,
nearest-name errors, the redacted ``repr`` and ``docs/reference/options.md`` come from it."""

from ..contracts.redaction import redact_url
from .declare import FORMATS, Options, camel, option_names, why_not_here
from .document import markdown
from .reading import DiscoveryOptions, ReadOptions, SubscribeOptions
from .scopes import ANY_READ, ANY_USE, ANY_WRITE, BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE, Use, command
from .sink import SinkOptions
from .times import duration
from .transport import TransportOptions

__all__ = [
    "ANY_READ", "ANY_USE", "ANY_WRITE", "BATCH_READ", "BATCH_WRITE", "FORMATS", "STREAM_READ", "STREAM_WRITE",
    "DiscoveryOptions", "Options", "ReadOptions", "SinkOptions", "SubscribeOptions", "TransportOptions", "Use", "camel",
    "command", "duration", "markdown", "nearest", "option_names", "redact_url", "why_not_here",
]  # fmt: skip
