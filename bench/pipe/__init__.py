"""Latency of a pipe: publisher, first broker, streaming query, second broker."""
