"""Tango's part of ``mama record``."""

from ..recorder.record_source import TangoRecordSource as Source
from ..recorder.settings import TangoRecorderSettings as Settings

__all__ = ["Settings", "Source"]
