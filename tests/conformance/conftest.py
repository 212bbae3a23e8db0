"""Fixtures of the tests of OpenMAMA's API."""

from tests.support.mama.mama_harness import harness, memory, nats_with_users, recorder

__all__ = ["harness", "memory", "nats_with_users", "recorder"]
