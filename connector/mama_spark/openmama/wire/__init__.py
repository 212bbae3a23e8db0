"""OpenMAMA over ZeroMQ, as its two bridges speak it: what is on the wire and in a recorder's log (pure), and a peer.

What its messages hold is in :mod:`mama_spark.mama.messages`.
"""
