"""Discovery over any middleware: leases, expiry, offsets and images in one log."""
