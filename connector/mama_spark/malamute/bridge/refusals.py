"""What a refusal of the broker means to the caller. Pure.

ERROR 502 says that an engine did not start or has failed, which may pass. Any other refusal is final: the user must
change something.
"""

from __future__ import annotations

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.malamute.protocol.commands import StatusCode


def passes(code: int) -> bool:
    """Whether the same call may succeed later.

    :param code: see :class:`~mama_spark.malamute.protocol.commands.StatusCode`
    """
    return code == StatusCode.INTERNAL_ERROR


def refused(code: int, text: str) -> Unavailable | ConfigError:
    """The error of a call that the broker refused."""
    return Unavailable(text) if passes(code) else ConfigError(text)
