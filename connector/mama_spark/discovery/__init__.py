"""Discovery over any middleware: leases, expiry, offsets and snapshots in one log."""
