"""OpenMAMA over ZeroMQ, as its two ZeroMQ bridges speak it: ``protocol`` (pure) and ``peer`` (sockets)."""
