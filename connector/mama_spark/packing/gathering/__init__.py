"""Payloads of packs whose rows have one column of octets, gathered from where the rows lie in one copy."""

__all__ = ["payload_places", "value_ipc", "value_lines", "value_views"]
