"""Contracts that every package may import: messages, topics, errors, bridges, logs."""
