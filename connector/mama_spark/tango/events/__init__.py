"""Tango events as ZeroMQ frames (RFC 12): codecs, batches, and the comparison of event counters. Pure."""

__all__ = ["batch_decoder", "event_codec", "frame_layout", "frames", "sequence_tracker"]
