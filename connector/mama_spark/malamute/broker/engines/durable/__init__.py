"""The engine that stores a stream in an SQLite file."""
