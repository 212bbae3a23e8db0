"""Benchmarks in steady state, beside Kafka and the C program."""
