"""What the terminal shows of messages and discovery; the parsers are in :mod:`mama_spark.cli`."""
