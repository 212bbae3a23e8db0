"""Tango's part of ``mama record``."""

from mama_spark.options import camel
from mama_spark.options.document import FileSection

from ..recorder.recorder import Recorder
from ..recorder.settings import RecorderSettings as Settings

__all__ = ["Recorder", "Settings", "document"]


def document() -> FileSection:
    """The file for ``mama docs``."""
    return FileSection(
        "Recorder: `mama record --conf-file conf/tango-record.toml`",
        (("`[recorder]`, with `url` of the database", Settings),),
        camel,
    )
