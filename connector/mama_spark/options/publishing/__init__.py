"""The options of ``mamapub``, declared by theme; :class:`~mama_spark.options.sink.SinkOptions` has them all."""

__all__ = ["announcement", "failures", "flight_log", "flow", "identity", "messages", "middlewares", "openmama"]
