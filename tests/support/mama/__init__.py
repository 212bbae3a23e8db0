"""OpenMAMA transports and discovery for tests."""
