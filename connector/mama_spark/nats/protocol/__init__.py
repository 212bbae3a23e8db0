"""The bytes of the NATS protocol as columns and frames, in both directions. Pure."""
