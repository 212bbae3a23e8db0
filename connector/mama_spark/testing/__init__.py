"""Test kit for authors of a bridge, a record log or a discovery; needs ``mama-spark[testing]``.

The suites are classes to inherit from; ``oracle`` checks that no row is lost; ``waiting`` replaces time limits. The kit
for stream engines is :mod:`mama_spark.malamute.testing`.
"""
