"""Brokers, clients and machines of Malamute for tests."""
