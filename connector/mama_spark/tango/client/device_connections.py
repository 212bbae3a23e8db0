"""Pool of the connections that one subscriber has to devices and to the admin devices of their servers."""

from __future__ import annotations

import threading

from ..errors import ServerAway
from ..giop.ior import DeviceName, Reference
from .device_proxy import DeviceProxy, open_reference, reference_of

#: Devices that get a connection of their own; processes are often limited to 1024 open files.
_OWN_CONNECTIONS = 200


class DeviceConnectionPool:
    """Connected device proxies by name, for any thread.

    :param timeout: seconds of a call
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._devices: dict[DeviceName, DeviceProxy] = {}
        self._admins: dict[DeviceName, DeviceName] = {}
        self._closed = False

    def close(self) -> None:
        """Close all connections; no new ones are made."""
        with self._lock:
            self._closed = True
            devices, self._devices = list(self._devices.values()), {}
        for device in devices:
            device.close()

    def device(self, name: DeviceName) -> DeviceProxy:
        """A connected proxy.

        :raises MamaError: the device cannot be reached
        """
        with self._lock:
            found = self._devices.get(name)
        if found is not None and not found.connection.closed:
            return found
        reference = reference_of(name, timeout=self.timeout)
        shared = self._shared_connection(name, reference)
        found = shared or open_reference(reference, name.device, timeout=self.timeout)
        with self._lock:
            if self._closed:
                found.close()
                raise ServerAway("the subscriber is closed")
            other = self._devices.get(name)
            if other is not None and not other.connection.closed:  # another thread was faster
                if other.connection is not found.connection:
                    found.close()
                return other
            self._devices[name] = found
        return found

    def _shared_connection(self, name: DeviceName, reference: Reference) -> DeviceProxy | None:
        """A proxy on a connection that another device of the same server has. Devices of a server without a database
        always share one; others only when there are many, so that they do not wait for each other's calls."""
        with self._lock:
            if name.dbase and len(self._devices) < _OWN_CONNECTIONS:
                return None
            for device in self._devices.values():
                if device.connection.addresses == reference.addresses and not device.connection.closed:
                    return DeviceProxy(device.connection, reference.key, name.device)
        return None

    def drop(self, name: DeviceName) -> None:
        """Close the connection of a device, and resolve its name and its admin device again next time."""
        with self._lock:
            found, self._admins = self._devices.pop(name, None), {k: v for k, v in self._admins.items() if k != name}
        if found is not None:
            found.close()

    def admin(self, name: DeviceName) -> tuple[DeviceName, DeviceProxy]:
        """The admin device of a device's server: its name, and a connected proxy.

        :raises MamaError: one of them cannot be reached
        """
        with self._lock:
            known = self._admins.get(name)
        if known is None:
            full_name = self.device(name).adm_name()
            known = name.sibling("/".join(full_name.lower().partition("#")[0].split("/")[-3:]))
            with self._lock:
                self._admins[name] = known
        return known, self.device(known)
