"""OpenMAMA over ZeroMQ, as its two ZeroMQ bridges speak it: ``protocol`` (pure) and ``peer`` (sockets). What its
messages hold is in :mod:`mama_spark.mama.messages`."""
