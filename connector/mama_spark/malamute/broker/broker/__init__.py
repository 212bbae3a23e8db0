"""The broker's sockets, threads and configuration."""
