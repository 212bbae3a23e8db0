"""The formats ``mamapub``, ``mamasub`` and ``mamadiscovery`` of Spark; the only package that imports pyspark."""
