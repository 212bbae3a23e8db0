"""Options with which nats-py connects: servers, credentials, TLS."""

from __future__ import annotations

import os
import ssl
from typing import Any

from mama_spark.errors import ConfigError

from ..settings import NatsSettings

_PING_INTERVAL = 20


def connect_options(settings: NatsSettings) -> dict[str, Any]:
    """Arguments of ``Client.connect``, without the callbacks.

    :raises ConfigError: a file is missing or cannot be read
    """
    options: dict[str, Any] = {
        "servers": list(settings.servers),
        "name": settings.name,
        "connect_timeout": settings.connect_timeout,
        "max_reconnect_attempts": -1,  # the retry deadline of the publisher decides when to give up
        "reconnect_time_wait": 0.1,
        "ping_interval": _PING_INTERVAL,
        "flusher_queue_size": 0,
    }
    if settings.user is not None:
        options["user"], options["password"] = settings.user, settings.password or ""
    if settings.token is not None:
        options["token"] = settings.token
    for name, path, option in (
        ("nkeySeed", settings.nkey_seed, "nkeys_seed"),
        ("credentials", settings.credentials, "user_credentials"),
    ):
        if path is not None:
            if not os.path.isfile(path):
                # a seed that was given instead of its file must not be shown
                shown = "" if name == "nkeySeed" else f" {path!r}"
                raise ConfigError(f"{name}: there is no such file{shown}")
            options[option] = path
    if settings.tls_ca or settings.tls_cert or any(s.startswith("tls:") for s in settings.servers):
        options["tls"] = _tls(settings)
    return options


def _tls(settings: NatsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        raise ConfigError(f"cannot read the TLS files: {e}") from e
    return context
