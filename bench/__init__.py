"""The side-by-side benchmark: ``python -m bench.run``, or ``make bench``."""
