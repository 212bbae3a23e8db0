"""Payloads of packs whose rows have one column of bytes, gathered from where the rows lie in one copy."""
