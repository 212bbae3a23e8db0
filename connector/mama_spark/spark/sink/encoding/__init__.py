"""Rows of a DataFrame as messages: the plan of columns, made on the driver, and encoders of tasks."""
