"""OpenMAMA's part of ``mama record``."""

from ..recorder.recorder import OpenMamaRecorder as Recorder
from ..recorder.settings import OpenMamaRecorderSettings as Settings

__all__ = ["Recorder", "Settings"]
