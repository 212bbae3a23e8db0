"""What the discovery of every middleware has in common: expiry, snapshots, recorded sources."""
