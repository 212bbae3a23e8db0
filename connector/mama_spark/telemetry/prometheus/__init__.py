"""Metrics of long-running programs as Prometheus reads them, served over HTTP (extra ``prometheus``)."""
