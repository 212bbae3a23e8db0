"""What OpenMAMA's ZeroMQ bridges put on the wire: frames, naming, messages of market data, the dictionary. Pure."""
