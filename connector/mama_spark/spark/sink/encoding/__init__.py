"""Rows of a DataFrame as messages: the plan of columns, made on the driver, and encoders of tasks."""

__all__ = ["codec_rows", "column_plan", "columns", "header_entries", "row_encoder", "trace_headers"]
