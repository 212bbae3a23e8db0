"""Malamute: ``MalamuteBridge(MalamuteSettings(...))``, through our own broker or the C one.

``frames`` decides without I/O; the connection is :mod:`mama_spark.malamute.link`; ``bridge`` puts both behind the
contract.
"""

from ...options import SinkOptions
from .bridge import MalamuteBridge
from .settings import MalamuteSettings

__all__ = ["MalamuteBridge", "MalamuteSettings", "publisher_bridge"]


def publisher_bridge(o: SinkOptions) -> MalamuteBridge:
    return MalamuteBridge(MalamuteSettings.from_options(o))
