"""PyTango's database server, run as a program by :class:`mama_spark.testing.tango_servers.TangoDatabase`."""

from __future__ import annotations

import sys
import threading

from tango.databaseds.database import main

from mama_spark.testing.tango_child import Channel

if __name__ == "__main__":
    threading.Thread(target=Channel().serve, args=({"pid": lambda: None},), daemon=True).start()
    main(sys.argv[1:])
