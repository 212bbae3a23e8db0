"""Streams of the broker: write, read, ping, query; commands to engines and their answers. Pure."""
