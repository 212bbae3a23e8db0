"""Exports what publishers and readers count, by the OpenTelemetry API (extra ``otel``); imported where asked for."""
