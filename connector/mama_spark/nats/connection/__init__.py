"""Connections to NATS servers, of publishers and readers: driven by the threads that use them."""
