"""Tango events as records of a log: their format, and the state of the recorder that writes them. Pure."""

__all__ = ["device_states", "pending_gaps", "record_builder", "recorder_state", "records", "recovery"]
