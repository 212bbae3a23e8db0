"""Source discovery in JetStream streams."""
