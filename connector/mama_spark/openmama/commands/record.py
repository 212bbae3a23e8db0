"""OpenMAMA's part of ``mama record``."""

from mama_spark.options import camel
from mama_spark.options.document import FileSection

from ..recorder.record_source import MamaRecordSource as Source
from ..recorder.settings import OpenMamaRecorderSettings as Settings

__all__ = ["Settings", "Source", "documents"]


def documents() -> list[FileSection]:
    """The configuration files for ``mama docs``."""
    recorder = (("`[recorder]`, with `url` of the name server", Settings),)
    return [FileSection("Recorder of OpenMAMA: `mama record --conf-file conf/openmama-record.toml`", recorder, camel)]
