"""Fixtures: of the OpenMAMA face, and a server."""

from mama_spark.testing.servers import nats_server
from mama_spark.testing.stages import memory, nats_with_users, stage, told

__all__ = ["memory", "nats_server", "nats_with_users", "stage", "told"]
