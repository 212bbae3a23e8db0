"""Text of which nothing is known is made safe, and stays as it is where it holds no secret."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, MamaError, OutcomeUnknown, PublishError, Rejected
from mama_spark.contracts.redaction import redact, safe_cause, secret_values, show_path
from mama_spark.mama.messages.status import Status, StatusError

from tests.support.tables import each

SEED = f"SU{'A7' * 28}"
JWT = f"eyJ0eXAiOiJKV1QifQ.{'x' * 90}.{'y' * 86}"
PEM = f"-----BEGIN PRIVATE KEY-----\nMC4C{'q' * 60}\n-----END PRIVATE KEY-----"
PASSWORDS = st.text("XYZÉ☃/?#%@:[]&,.;!)", min_size=1).filter(lambda text: set(text) & set("XYZÉ☃"))


@given(
    PASSWORDS, st.sampled_from(["nats", "tls", "mlp", "s3", "http"]), st.sampled_from(["h", "h:1", "[::1]:4222", "h/s"])
)
def test_no_login_of_a_url_in_a_sentence_is_shown(password: str, scheme: str, place: str) -> None:
    shown = redact(f"cannot connect to {scheme}://joe:{password}@{place}: refused ('{scheme}://{password}@{place}').")
    assert not set(shown) & set("XYZÉ☃")
    assert shown.startswith("cannot connect to ")
    assert "refused" in shown
    assert redact(shown) == shown


@each("secret", [SEED, JWT, PEM])
def test_keys_seeds_and_tokens_are_masked(secret: str) -> None:
    for text in (secret, f"no such file {secret!r}: it is missing", f"({secret})"):
        shown = redact(text)
        assert "***" in shown
        assert not any(part in shown for part in secret.split("\n")[-2:])
        assert redact(shown) == shown


@each(
    "text",
    [
        "nats://h:4222/a?b, nats://g:1.",
        "topic 'joe@lab' has no stream",
        "12:30@noon",
        "Unavailable: nobody listens at mlp://[::1]:9999/stream",
        f"the key {'U' + 'A7' * 27 + 'A'} is public",
        "ebe2c1ba9a2d5f7f4d3d6ad5d1a6c1ad8f0b3df9ad6a71b0e2c1d3f4a5b6c7d8",
        "abfss://box@account.dfs.core.windows.net/log",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@each("kind", [MamaError, ConfigError, Rejected, OutcomeUnknown])
def test_every_error_is_safe_whatever_it_is_made_of(kind: type[MamaError]) -> None:
    error = kind("at nats://joe:s3cret@h:4222")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert "nats://***@h:4222" in str(one)
        assert "s3cret" not in f"{one}{one!r}{one.args}{vars(one)}"


def test_errors_keep_what_else_they_hold() -> None:
    error = PublishError("at nats://joe:s3cret@h", 17, "SOME")
    assert (error.info, error.code, error.status) == ("at nats://***@h", 17, "SOME")
    status = StatusError(Status.INVALID_ARG, "at nats://joe:s3cret@h")
    assert (status.status, status.info) == (Status.INVALID_ARG, "at nats://***@h")


@each("path", ["/etc/nats/user.creds", "user.creds", "./user", "C:\\keys\\user.nk", "../a b/key.pem"])
def test_a_path_is_shown(path: str) -> None:
    assert show_path(path) == repr(path)


@each("value", [SEED, JWT, PEM, "s3cret", "q83+" * 30, f"/etc/{'s3cret' * 10}", "a\n/b", ""])
def test_what_may_be_a_secret_is_not_shown_as_a_path(value: str) -> None:
    assert show_path(value) == "***"


def test_secrets_of_a_storage_are_known_by_their_keys() -> None:
    options = {"aws_access_key_id": "AKIA", "AWS_SECRET_ACCESS_KEY": "s3%2Fcret", "azure_sas": "AKIA-1", "region": "x"}
    secrets = secret_values(options)
    assert set(secrets) == {"AKIA", "s3%2Fcret", "s3/cret", "AKIA-1"}
    assert redact("AKIA-1 with s3/cret in x", secrets) == "*** with *** in x"
    assert safe_cause(OSError("AKIA"), secrets) is None
    fine = OSError("in x")
    assert safe_cause(fine, secrets) is fine


def test_an_empty_secret_hides_nothing() -> None:
    assert redact("user joe at host", ["", "joe"]) == "user *** at host"


def test_an_error_is_one_line_whatever_it_is_made_of() -> None:
    """delta-rs, Rust and servers give texts of several lines, with colours; a terminal would show the last alone."""
    error = MamaError("log: Kernel error\n   \x1b[31m↳\x1b[0m Unable to open\r\n\n Not a directory\n", 7)
    assert error.args == ("log: Kernel error ↳ Unable to open Not a directory", 7)
    assert MamaError("two  blanks, é").args == ("two  blanks, é",)
