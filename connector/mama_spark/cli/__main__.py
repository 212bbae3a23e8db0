"""``python -m mama_spark.cli`` is the command ``mama``."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
