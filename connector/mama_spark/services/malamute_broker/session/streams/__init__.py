"""What clients do with streams: write, read, ping, query; and the commands and answers of engines. Pure."""
