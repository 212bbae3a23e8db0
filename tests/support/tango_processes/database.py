"""PyTango's database server, run as a program by :class:`tests.support.tango_processes.servers.TangoDatabase`."""

from __future__ import annotations

import sys
import threading

from tango.databaseds.database import main

from tests.support.tango_processes.child import JsonChannel

if __name__ == "__main__":
    threading.Thread(target=JsonChannel().serve, args=({"pid": lambda: None},), daemon=True).start()
    main(sys.argv[1:])
