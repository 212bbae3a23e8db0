"""What grows with partitions, micro-batches, files, topics, sources and streams, and the clusters that follow from it.

Machines are not needed: what many of them send to one process is made here, and given to the code that takes it.
"""
