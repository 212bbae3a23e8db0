"""Spark and the storage of its tables, and worlds in which the whole sink runs."""
