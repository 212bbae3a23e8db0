"""The flight log: a Delta table with one row for every event of a flight, a publisher or a topic.

Executors write Parquet parts at their final place (:mod:`.staging`), one process commits them (:mod:`.commit`): with
delta-rs, because Spark has no session in that process.
"""
