"""NATS servers and connections for tests."""
