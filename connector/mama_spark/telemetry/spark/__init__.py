"""What tasks export by OpenTelemetry where options ask for it; loaded by nothing else."""

__all__ = ["partition_metrics", "publish_span", "read_metrics", "receive_span"]
