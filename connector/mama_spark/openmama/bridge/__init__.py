"""OpenMAMA bridge: publishes straight to OpenMAMA programs, over the framings of their two ZeroMQ bridges."""

from pathlib import Path

from mama_spark.contracts.errors import ConfigError
from mama_spark.openmama.wire.protocol.dictionary import DictionaryEntry, parse_dictionary
from mama_spark.options import SinkOptions

from .bridge import OpenMamaBridge
from .field_types import FieldForms
from .row_codec import FieldCodec
from .settings import OpenMamaSettings

__all__ = ["FieldCodec", "OpenMamaBridge", "OpenMamaSettings", "publisher_bridge", "row_codec"]


def publisher_bridge(o: SinkOptions) -> OpenMamaBridge:
    """Make the publisher bridge."""
    return OpenMamaBridge(OpenMamaSettings.from_options(o))


def row_codec(o: SinkOptions) -> FieldCodec:
    """Make the row codec from the options of a query.

    :raises ConfigError: a field has no such type, or the dictionary cannot be read
    """
    entries: list[DictionaryEntry] = []
    if o.mama_dictionary is not None:
        try:
            entries = parse_dictionary(Path(o.mama_dictionary).read_text(encoding="utf-8", errors="replace"))
        except (OSError, ConfigError) as e:
            raise ConfigError(f"option mamaDictionary: {o.mama_dictionary}: {e}") from e
    return FieldCodec(FieldForms(o.mama_fields, entries), o.topic, o.topic_prefix)
