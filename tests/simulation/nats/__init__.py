"""Worlds with NATS: who writes, who stores, and what goes wrong between them."""
