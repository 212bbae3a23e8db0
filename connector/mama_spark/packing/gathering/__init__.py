"""Payloads of packs whose rows have one column of octets, gathered from where the rows lie in one copy."""
