"""What tests share and nobody else needs."""

import os
from pathlib import Path

# Helper programs and Spark's workers import this package too, from whatever folder they run in.
_ROOT = str(Path(__file__).resolve().parents[2])
_PATHS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
if _ROOT not in _PATHS:
    os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, _ROOT])
