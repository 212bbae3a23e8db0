"""Every exception that mama-spark raises on purpose. Pure.

Two class attributes say what may be done about an error; code reads these flags, never class names:

* ``retryable``: may the same thing succeed later, with nothing changed by the user?
* ``may_have_landed``: may the middleware have stored the message although we report an error?

A :class:`PublishError` also says how the *whole* publisher should behave while the cause lasts (``backpressure``).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Self

from .redaction import one_line, redact


class Backpressure(Enum):
    """Effect of an error on the publisher as a whole, beyond the message that it concerns.

    :cvar NONE: the cause concerns this message alone
    :cvar PAUSE: send nothing until the back-off has passed: no message would get through
    :cvar SHRINK_WINDOW: pause, and halve the window: the server is overloaded
    """

    NONE = "none"
    PAUSE = "pause"
    SHRINK_WINDOW = "shrink_window"


class MamaError(Exception):
    """Base class. Its text shows no secret, and is one line, whatever it was made of."""

    retryable: ClassVar[bool] = False
    may_have_landed: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(one_line(redact(arg)) if isinstance(arg, str) else arg for arg in args))


class ConfigError(MamaError, ValueError):
    """A mistake that only the user can correct: an option, a schema, a stream, a permission."""


class OptionError(ConfigError):
    """An option is unknown, malformed, out of range, or contradicts another one."""


class SchemaError(ConfigError):
    """The columns of the DataFrame do not fit the format."""


class ClientClosed(MamaError):
    """The publisher, the bridge or the pool was closed or drained; nothing can be added any more."""


class QueueFull(MamaError):
    """The queue of the publisher is full and the caller may not block. Raised before anything is accepted."""

    retryable = True


class Unavailable(MamaError):
    """The middleware or the storage cannot be reached now."""

    retryable = True


class BackgroundTaskFailed(Unavailable):
    """A background thread or task ended with an error, ``__cause__``; raised to everything that waits for it."""

    may_have_landed = True


class FlightLogError(ConfigError):
    """The flight log cannot be written or read: path, permission, another table at this place."""


class DataLost(MamaError):
    """The middleware removed records before the query read them, and ``failOnDataLoss`` is on."""


class CorruptPack(MamaError):
    """A message cannot be unpacked, or not into the requested columns; ``mode`` or ``failOnCorrupt`` says to fail."""


class RowsFailed(MamaError):
    """Rows of a write failed finally and ``onError=fail``. Raised by the commit, so that no task is retried."""


# --- why one send of one message was not acknowledged ------------------------------------------------------


class PublishError(MamaError):
    """Why a send failed, or why its outcome is unknown. A retryable message that may be stored is sent again only where
    a second copy does no harm. The flags of this class and its subclasses:

    | class | ``retryable`` | ``may_have_landed`` | ``backpressure`` |
    |---|---|---|---|
    | ``PublishError``, ``Rejected`` and its subclasses, ``NotPublished`` | no | no | ``NONE`` |
    | ``Stopped`` | no | yes | ``NONE`` |
    | ``NotReady``, ``BlockedByPredecessor`` | yes | no | ``NONE`` |
    | ``DuplicateInFlight``, ``OutcomeUnknown``, ``AckTimeout`` | yes | yes | ``NONE`` |
    | ``NoResponders``, ``OutOfResources`` | yes | no | ``PAUSE`` |
    | ``RateLimited`` | yes | no | ``SHRINK_WINDOW`` |

    :param info: the middleware's text (or ours), for people
    :param code: the middleware's number (JetStream ``err_code``, else an HTTP-like status), 0 if it has none
    :param status: MAMA status name that goes to the flight log
    """

    backpressure: ClassVar[Backpressure] = Backpressure.NONE
    answered: ClassVar[bool] = True  #: the middleware (or our own check) reported it; False: no answer came
    is_attempt: ClassVar[bool] = True  #: the send counts among the ``attempts`` of a retry policy
    default_status: ClassVar[str] = "PUBLISH_ERROR"

    def __init__(self, info: str, code: int = 0, status: str | None = None) -> None:
        super().__init__(info)
        self.info: str = self.args[0]
        self.code = code
        self.status = status or self.default_status

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.info}" if self.code else f"{self.status}: {self.info}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info!r}, code={self.code}, status={self.status!r})"


class Rejected(PublishError):
    """The middleware, or our own check, rejected the message finally. Not stored."""


class BadRow(Rejected):
    """The row cannot become a message: null topic, null value, bad header, null id. Never sent.

    :ivar null: column of the batch that holds a placeholder for this row, which has null there; empty = none
    """

    default_status = "INVALID_ARG"
    null: str = ""

    @classmethod
    def of_null(cls, column: str, info: str) -> Self:
        error = cls(info)
        error.null = column
        return error


class DoubledId(BadRow):
    """A row before it in the same task has its message id, and ``onDuplicateId=fail``. Never sent."""

    #: Begins ``info`` of each flight whose id is doubled, also where it is sent.
    label: ClassVar[str] = "doubled id in the same write"

    def __init__(self, info: str = "", code: int = 0, status: str | None = None) -> None:
        why = f"{self.label}: a row before it has this id, and a broker keeps one message of an id"
        super().__init__(info or why, code, status)


#: Begins ``info`` of a flight that was sent again while a copy of it might still be stored.
PERHAPS_TWICE = "perhaps stored twice"


class BadTopic(BadRow):
    """The topic cannot be published to: wildcard, empty token, blanks, too long."""

    default_status = "BAD_SYMBOL"


class TooLarge(Rejected):
    """Message (headers and payload) larger than the middleware takes."""

    default_status = "INVALID_ARG"


class PermissionDenied(Rejected):
    """No permission to publish to this topic."""

    default_status = "PUBLISH_ERROR_NOT_ENTITLED"


class ExpectationFailed(Rejected):
    """An expectation of the message (stream, last id, last sequence) did not hold. Not stored."""


class Stopped(PublishError):
    """The publisher was stopped or closed, or its bridge raised, before the outcome was known."""

    may_have_landed = True


class NotPublished(PublishError):
    """The publisher was stopped before the message was sent at all."""


class NotReady(PublishError):
    """The middleware could not decide yet (JetStream 10163). Not stored; retry."""

    retryable = True


class BlockedByPredecessor(PublishError):
    """A message not stored because one before it in an ordered batch failed; may be sent again at once."""

    retryable = True
    is_attempt = False


class DuplicateInFlight(PublishError):
    """A message of the same id is proposed but not committed (JetStream 10158). Not an acknowledgement; retry later."""

    retryable = True
    may_have_landed = True


class NoResponders(PublishError):
    """No stream takes this topic now, or it has no leader. Not stored."""

    retryable = True
    backpressure = Backpressure.PAUSE
    default_status = "PUBLISH_ERROR_NO_RESPONDERS"


class OutOfResources(PublishError):
    """The middleware lacks resources, or its storage is switched off. Not stored."""

    retryable = True
    backpressure = Backpressure.PAUSE


class RateLimited(PublishError):
    """The middleware drops what comes too fast (429). Not stored."""

    retryable = True
    backpressure = Backpressure.SHRINK_WINDOW


class OutcomeUnknown(PublishError):
    """No answer: acknowledgement lost, connection lost, server restarted. Unknown whether it is stored."""

    retryable = True
    may_have_landed = True
    answered = False
    default_status = "TIMEOUT"


class AckTimeout(OutcomeUnknown):
    """No acknowledgement within ``waitTimeout`` of a send."""
