"""OpenMAMA's part of ``mama record``."""

from ..recorder.record_source import MamaRecordSource as Source
from ..recorder.settings import OpenMamaRecorderSettings as Settings

__all__ = ["Settings", "Source"]
