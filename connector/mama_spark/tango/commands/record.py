"""Tango's part of ``mama record``."""

from mama_spark.options import camel
from mama_spark.options.document import FileSection

from ..recorder.record_source import TangoRecordSource as Source
from ..recorder.settings import TangoRecorderSettings as Settings
from ..source.log_replayer import Rule

__all__ = ["Settings", "Source", "documents"]


def documents() -> list[FileSection]:
    """The configuration files for ``mama docs``."""
    recorder, rules = (("`[recorder]`, with `url` of the database", Settings),), (("`[[attribute]]`", Rule),)
    return [
        FileSection("Recorder: `mama record --conf-file conf/tango-record.toml`", recorder, camel),
        FileSection("Event source: `mama tango-source --conf-file conf/tango-source.toml`", rules),
    ]
