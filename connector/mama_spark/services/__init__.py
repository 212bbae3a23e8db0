"""Long-running programs: brokers, servers and recorders."""
