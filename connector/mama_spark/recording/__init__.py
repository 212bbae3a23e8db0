"""Recorders, which write what they receive into a record log, and what follows such a log."""
