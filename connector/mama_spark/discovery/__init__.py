"""What the discovery of every middleware has in common: leases, expiry, offsets and snapshots in one log."""
