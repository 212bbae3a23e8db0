"""Tango's part of ``mama record``."""

from mama_spark.options import camel
from mama_spark.options.document import FileSection

from ..recorder.recorder import Recorder
from ..recorder.settings import RecorderSettings as Settings
from ..source.replay.log_replayer import Rule

__all__ = ["Recorder", "Settings", "documents"]


def documents() -> list[FileSection]:
    """The configuration files for ``mama docs``."""
    recorder, rules = (("`[recorder]`, with `url` of the database", Settings),), (("`[[attribute]]`", Rule),)
    return [
        FileSection("Recorder: `mama record --conf-file conf/tango-record.toml`", recorder, camel),
        FileSection("Event source: `mama tango-source --conf-file conf/tango-source.toml`", rules),
    ]
