"""Reading JetStream streams as record logs."""
