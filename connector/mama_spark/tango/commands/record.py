"""Tango's part of ``mama record``."""

from ..recorder.recorder import Recorder
from ..recorder.settings import RecorderSettings as Settings

__all__ = ["Recorder", "Settings"]
