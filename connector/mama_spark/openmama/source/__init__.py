"""OpenMAMA over ZeroMQ: a name server, and a market data publisher that serves what is in a record log."""
