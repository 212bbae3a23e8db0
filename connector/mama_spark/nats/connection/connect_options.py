"""Options with which nats-py connects: servers, credentials, TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import redact_url, safe_cause, show_path
from mama_spark.options.urls import with_scheme

from ..settings import NatsSettings
from .login import require_file

_PING_INTERVAL = 20


def connect_options(settings: NatsSettings) -> dict[str, Any]:
    """Arguments of ``Client.connect``, without the callbacks.

    :raises ConfigError: a file is missing or cannot be read
    """
    options: dict[str, Any] = {
        "servers": [with_scheme(url.strip()) for url in settings.servers],
        "name": settings.name,
        "connect_timeout": settings.connect_timeout,
        "max_reconnect_attempts": -1,  # the retry deadline of the publisher decides when to give up
        "reconnect_time_wait": 0.1,
        "ping_interval": _PING_INTERVAL,
        "flusher_queue_size": 0,
    }
    _add_login(options, settings)
    for name, path, option in (
        ("nkeySeed", settings.nkey_seed, "nkeys_seed"),
        ("credentials", settings.credentials, "user_credentials"),
    ):
        if path is not None:
            options[option] = require_file(name, path)
    if settings.wants_tls:
        options["tls"] = tls_context(settings)
        options["tls_handshake_first"] = settings.tls_handshake_first
    return options


def _add_login(options: dict[str, Any], settings: NatsSettings) -> None:
    """User and password, or token. A login of URLs counts for all servers, those too that a cluster announces; nats-py
    would send it as it stands in the URL, percent-encoded, and to the server of this URL alone."""
    user, password, token = settings.user, settings.password, settings.token
    given = (user, token, settings.credentials, settings.nkey_seed)
    if not any(given) and (login := settings.login_of_urls) is not None:
        user, password, token = (None, None, login[0]) if login[1] is None else (*login, None)
        options["servers"] = [redact_url(url, mask="") for url in options["servers"]]
    if user is not None:
        options["user"], options["password"] = user, password or ""
    if token is not None:
        options["token"] = token


def tls_context(settings: NatsSettings) -> ssl.SSLContext:
    """For all servers.

    :raises ConfigError: a file cannot be read
    """
    with _reads_tls(settings, "tlsCa", "tls_ca"):
        context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert:
        with _reads_tls(settings, "tlsCert and tlsKey", "tls_cert", "tls_key"):
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


@contextmanager
def _reads_tls(settings: NatsSettings, options: str, *names: str) -> Iterator[None]:
    """:raises ConfigError: a file is missing, or holds something else; OpenSSL does not say which file it is"""
    try:
        yield
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        paths = " and ".join(show_path(getattr(settings, name)) for name in names if getattr(settings, name))
        raise ConfigError(f"cannot read the TLS files of {options} ({paths}): {e}") from safe_cause(e)
