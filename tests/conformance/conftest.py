"""Fixtures: of the OpenMAMA face."""

from mama_spark.testing.stages import memory, nats_with_users, stage, told

__all__ = ["memory", "nats_with_users", "stage", "told"]
