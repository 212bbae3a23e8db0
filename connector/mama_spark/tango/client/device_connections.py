"""Pool of one subscriber's connections to devices and to the admin devices of their servers."""

from __future__ import annotations

import threading

from ..errors import ServerAway
from ..giop.ior import DeviceName, Reference
from .device_proxy import DeviceProxy, open_reference, reference_of

#: Most devices with a connection of their own; the limit of open files is often 1024.
_OWN_CONNECTIONS = 200


class DeviceConnectionPool:
    """Connected device proxies by device name. Methods may be called in any thread.

    :param timeout: timeout of a call in seconds
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._devices: dict[DeviceName, DeviceProxy] = {}
        self._admins: dict[DeviceName, DeviceName] = {}
        self._closed = False

    def close(self) -> None:
        """Close all connections. :meth:`device` then raises."""
        with self._lock:
            self._closed = True
            devices, self._devices = list(self._devices.values()), {}
        for device in devices:
            device.close()

    def device(self, name: DeviceName) -> DeviceProxy:
        """Return a connected proxy of a device.

        :raises MamaError: the device cannot be reached, or the pool is closed
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
            if other is not None and not other.connection.closed:  # another thread connected it meanwhile
                if other.connection is not found.connection:
                    found.close()
                return other
            self._devices[name] = found
        return found

    def _shared_connection(self, name: DeviceName, reference: Reference) -> DeviceProxy | None:
        """Return a proxy on the connection of another device of the same server, or None.

        Devices of a server without a database share one connection. Devices with a database share one only when there
        are many, since calls over one connection wait for each other.
        """
        with self._lock:
            if name.dbase and len(self._devices) < _OWN_CONNECTIONS:
                return None
            for device in self._devices.values():
                if device.connection.addresses == reference.addresses and not device.connection.closed:
                    return DeviceProxy(device.connection, reference.key, name.device)
        return None

    def drop(self, name: DeviceName) -> None:
        """Close the connection of a device. The next use resolves its name and its admin device again."""
        with self._lock:
            found, self._admins = self._devices.pop(name, None), {k: v for k, v in self._admins.items() if k != name}
        if found is not None:
            found.close()

    def admin(self, name: DeviceName) -> tuple[DeviceName, DeviceProxy]:
        """Return the name and a connected proxy of the admin device of a device's server.

        :raises MamaError: the device or the admin device cannot be reached
        """
        with self._lock:
            known = self._admins.get(name)
        if known is None:
            full_name = self.device(name).adm_name()
            known = name.sibling("/".join(full_name.lower().partition("#")[0].split("/")[-3:]))
            with self._lock:
                self._admins[name] = known
        return known, self.device(known)
