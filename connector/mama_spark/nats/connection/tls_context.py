"""What TLS is made of."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import safe_cause, show_path

from ..settings import NatsSettings


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
