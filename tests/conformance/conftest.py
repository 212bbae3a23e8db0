"""Fixtures: of the OpenMAMA face."""

from tests.support.mama_harness import memory, nats_with_users, stage, told

__all__ = ["memory", "nats_with_users", "stage", "told"]
