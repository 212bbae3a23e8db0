"""A real device server whose one attribute, ``forwarded``, is an attribute of another server's device; run as a program
by :class:`tests.support.tango_processes.servers.TangoMirror`. Takes no requests, and ends with its stdin."""

from __future__ import annotations

import sys
import threading

import tango
from tango.server import Device, attribute, run

from tests.support.tango_processes.child import JsonChannel


class Mirror(Device):  # type: ignore[misc]
    """See the module."""

    forwarded = attribute(name="forwarded", forwarded=True)


def main() -> None:
    port, device, root = sys.argv[1:]
    database = tango.Database()
    for name, kind in (("dserver/Mirror/t", "DServer"), (device, "Mirror")):
        info = tango.DbDevInfo()
        info.name, info._class, info.server = name, kind, "Mirror/t"
        database.add_device(info)
    database.put_device_attribute_property(device, {"forwarded": {"__root_att": [root]}})
    channel = JsonChannel()

    def ready() -> None:
        threading.Thread(target=channel.serve, args=({},), daemon=True).start()

    run([Mirror], args=["Mirror", "t", "-ORBendPoint", f"giop:tcp:127.0.0.1:{port}"], post_init_callback=ready)


if __name__ == "__main__":
    main()
