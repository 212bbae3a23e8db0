"""The formats ``mamapub``, ``mamasub`` and ``mamadiscovery`` of Spark."""
