"""The engine that stores a stream in an SQLite file."""

__all__ = ["engine", "log", "log_queries", "settings", "store", "store_reader"]
