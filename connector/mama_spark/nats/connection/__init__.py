"""Connections of publishers and readers to NATS servers, driven by the threads that use them."""
