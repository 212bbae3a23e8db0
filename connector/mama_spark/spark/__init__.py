"""The only room that imports pyspark: the data source formats and the readers of what they wrote."""
