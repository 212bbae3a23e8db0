"""Log of Tango events: the format of its records, and the state of the recorder that writes them. Pure."""

__all__ = ["device_states", "error_series", "pending_gaps", "record_builder", "recorder_state", "records", "recovery"]
