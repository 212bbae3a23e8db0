"""A key of CURVE: 32 bytes as 40 characters of Z85."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from zmq.utils import z85

from mama_spark.contracts.errors import ConfigError


def check_curve_keys(keys: Iterable[str | None]) -> None:
    """Check that each key is a CURVE key in Z85; None passes.

    :raises ConfigError: a key is malformed
    """
    for key in keys:
        try:
            sound = key is None or (len(key) == 40 and len(z85.decode(key)) == 32)
        except (KeyError, ValueError, struct.error):
            sound = False
        if not sound:
            raise ConfigError("a CURVE key has 40 characters (Z85)")
