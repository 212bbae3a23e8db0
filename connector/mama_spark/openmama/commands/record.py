"""OpenMAMA's part of ``mama record``."""

from mama_spark.options import camel
from mama_spark.options.document import FileSection

from ..recorder.recorder import OpenMamaRecorder as Recorder
from ..recorder.settings import OpenMamaRecorderSettings as Settings

__all__ = ["Recorder", "Settings", "document"]


def document() -> FileSection:
    """The file for ``mama docs``."""
    return FileSection(
        "Recorder of OpenMAMA: `mama record --conf-file conf/openmama-record.toml`",
        (("`[recorder]`, with `url` of the name server", Settings),),
        camel,
    )
