"""Makes writes of a running nats-server fail, as a full disk does."""

from __future__ import annotations

import resource

from mama_spark.nats.server.nats_server import NatsServer

#: Bytes of a file at which writes fail.
LARGEST_FILE = 64 << 10


def limit_files(server: NatsServer, size: int = LARGEST_FILE) -> None:
    """Its files may have so many bytes; :data:`resource.RLIM_INFINITY`: there is room again."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))
