"""OpenMAMA bridge: publishes straight to OpenMAMA programs, over the framings of their two ZeroMQ bridges."""

from mama_spark.openmama.wire.dictionary import dictionary_of_file
from mama_spark.options import SinkOptions

from .bridge import OpenMamaBridge, OpenMamaSettings
from .field_columns import FieldForms
from .row_codec import FieldCodec

__all__ = ["FieldCodec", "OpenMamaBridge", "OpenMamaSettings", "publisher_bridge", "row_codec"]


def publisher_bridge(o: SinkOptions) -> OpenMamaBridge:
    return OpenMamaBridge(OpenMamaSettings.from_options(o))


def row_codec(o: SinkOptions) -> FieldCodec:
    """Make the row codec from the options of a query.

    :raises ConfigError: a field has no such type, or the dictionary cannot be read
    """
    path = o.mama_dictionary
    entries = [] if path is None else dictionary_of_file(path, "option mamaDictionary:")
    return FieldCodec(FieldForms(o.mama_fields, entries), o.topic, o.topic_prefix)
