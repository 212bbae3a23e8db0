"""What tasks export by OpenTelemetry where options ask for it; loaded by nothing else."""
