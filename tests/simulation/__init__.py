"""The product in a simulated world: virtual time, one scheduler with a seed, no threads, no sockets, no sleeps."""
