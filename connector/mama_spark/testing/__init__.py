"""Test kit for authors of a bridge, a record log, a discovery or a stream engine; needs ``mama-spark[testing]``.

The suites are classes to inherit from; ``oracle`` checks that no row is lost; ``clocks`` and ``waiting`` replace time
limits.
"""
