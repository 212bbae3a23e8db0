from __future__ import annotations

import inspect
from typing import Any

import nats.errors
import nats.js.errors
from mama_spark.contracts.errors import (
    Backpressure,
    DuplicateInFlight,
    MamaError,
    OutOfResources,
    PermissionDenied,
    RateLimited,
    Rejected,
    TooLarge,
)
from mama_spark.nats import error_codes
from mama_spark.nats.connection.login import refusal
from mama_spark.nats.publish import nats_py_errors

from tests.support.tables import each


def library_errors() -> list[type[Exception]]:
    found = {
        cls
        for module in (nats.errors, nats.js.errors)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception)
    }
    return sorted(found, key=lambda c: f"{c.__module__}.{c.__name__}")


@each("cls", library_errors())
def test_no_error_of_the_client_library_is_unmapped(cls: type[Exception]) -> None:
    kind = next((nats_py_errors.CLIENT[base] for base in cls.__mro__ if base in nats_py_errors.CLIENT), None)
    assert kind is not None
    assert issubclass(kind, MamaError)
    stand_in: Any = type(cls.__name__, (cls,), {"__str__": lambda _: "text"})  # constructors differ
    translated = nats_py_errors.from_client(stand_in.__new__(stand_in))
    assert type(translated) is kind


@each(
    ("text", "kind"),
    [
        ("maximum messages exceeded", Rejected),
        ("maximum bytes exceeded", Rejected),
        ("maximum messages per subject exceeded", Rejected),
        ("message too large", TooLarge),
        ("store is closed", OutOfResources),
        ("write 1.blk: no space left on device", OutOfResources),
    ],
)
def test_a_store_that_fails_is_not_the_fault_of_a_row_and_one_that_is_full_is_final(
    text: str, kind: type[MamaError]
) -> None:
    """A store is closed when its server goes down, or its stream is deleted."""
    assert type(error_codes.from_reply(503, error_codes.STORE_FAILED, text)) is kind


@each(
    ("http", "kind"),
    [(429, RateLimited), (503, OutOfResources), (500, OutOfResources), (409, DuplicateInFlight), (400, Rejected)],
)
def test_an_unknown_number_falls_back_to_its_http_code(http: int, kind: type[MamaError]) -> None:
    assert type(error_codes.from_reply(http, 19_999, "new")) is kind


def test_the_whole_publisher_holds_on_503_and_shrinks_on_429() -> None:
    assert error_codes.no_responders("a").backpressure is Backpressure.PAUSE
    assert error_codes.from_reply(429, 10167, "").backpressure is Backpressure.SHRINK_WINDOW
    assert error_codes.from_reply(503, 10077, "maximum messages exceeded").backpressure is Backpressure.NONE


@each(
    ("text", "wanted"),
    [
        ('nats: permissions violation for publish to "s.secret"', ("publish", "s.secret")),
        ("Authorization Violation", None),
    ],
)
def test_a_permission_violation_names_its_subject_in_nats_py_too(text: str, wanted: tuple[str, str] | None) -> None:
    assert error_codes.denied(text) == wanted


def test_wrong_credentials_are_for_the_user_to_change() -> None:
    assert "correct what logs in" in refusal("nats: 'Authorization Violation'")
    assert refusal("credentials: the file has no seed") == "credentials: the file has no seed"
    assert isinstance(error_codes.not_entitled("a"), PermissionDenied)
