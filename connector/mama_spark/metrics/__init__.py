"""Exports what publishers count, by the OpenTelemetry API (extra ``otel``); imported where the option asks for it."""

__all__ = ["provider", "publisher_metrics"]
