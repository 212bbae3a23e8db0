"""Tango events as ZeroMQ frames (RFC 12): codecs, batches, and the comparison of event counters. Pure."""
