"""What the discovery of every middleware has in common: leases, expiry, snapshots, recorded sources."""
