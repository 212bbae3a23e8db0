"""What stands before the @ of a URL is shown nowhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import OptionError
from mama_spark.nats.settings import NatsSettings
from mama_spark.options import SinkOptions, redact_url

from tests.support.tables import each

URLS = ("nats://joe:s3cret@h:4222", "nats://joe:s3@cret@h:4222", "nats://s3cret@h:4222", "nats://@s3cret@h:4222")
#: Letters that stand nowhere but in secrets, and what URLs, lists of URLs and IPv6 addresses are divided by.
SECRETS = st.text("XYZÉ☃/?#%@:[]& ", min_size=1).filter(lambda text: set(text) & set("XYZÉ☃"))
HOSTS = st.sampled_from(["h", "h:4222", "10.0.0.1:1", "[::1]:4222", "h:4222/stream", "h/stream?a=b"])
SCHEMES = st.sampled_from(["", "nats://", "tls://", "mlp://", "memory://", "tango://", "tcp://"])


@st.composite
def urls(draw: st.DrawFn, secrets: st.SearchStrategy[str] = SECRETS) -> str:
    return f"{draw(SCHEMES)}joe:{draw(secrets)}@{draw(HOSTS)}"


def shows_a_secret(text: str) -> bool:
    return bool(set(text) & set("XYZÉ☃"))


@given(st.lists(urls(), min_size=1, max_size=4))
def test_no_secret_of_any_url_is_shown(servers: list[str]) -> None:
    assert not shows_a_secret(redact_url(",".join(servers)))
    assert not shows_a_secret(redact_url(",".join(servers), mask=""))


@given(urls(st.text("XYZ,/@:", min_size=1)))
def test_a_comma_in_a_password_shows_no_part_of_it(url: str) -> None:
    assert not shows_a_secret(redact_url(url))


@given(st.lists(urls(), min_size=1, max_size=3))
def test_no_secret_of_any_url_is_in_options_or_in_the_error_about_them(servers: list[str]) -> None:
    try:
        shown = repr(SinkOptions.parse({"url": ",".join(servers)}))
    except OptionError as e:
        shown = str(e)
    assert not shows_a_secret(shown)


@each("url", URLS)
def test_a_url_is_shown_without_user_and_password(url: str) -> None:
    for shown in (
        redact_url(url),
        ", ".join(NatsSettings((url,)).shown_servers),
        repr(SinkOptions.parse({"url": url})),
    ):
        assert not {"s3", "cret", "joe"} & set(shown.replace("@", " ").replace(":", " ").replace("/", " ").split())
        assert "s3cret" not in shown
        assert "h:4222" in shown


@each("url", ["nats://h:4222/a?b", "h", "[::1]:4222", "tango://lab", "memory://a", "mlp://h/s"])
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redact_url(url) == redact_url(url, mask="") == url
    assert redact_url(f"{url},nats://b:1") == f"{url},nats://b:1"


@each(
    ("url", "shown"),
    [
        ("nats://joe:pw@h:4222,nats://ann:pw@g", "nats://***@h:4222,nats://***@g"),
        ("joe:a/b?c#d@h:4222/stream", "***@h:4222/stream"),
        ("nats://joe:pw", "nats://joe:***"),
        ("nats://[::1]:pw/stream", "nats://[::1]:***"),
        ("nats://joe:p]w", "nats://joe:***"),
    ],
)
def test_what_is_left_of_a_url(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@each(
    "url",
    [
        "nats://joe:12/s3cret@h", "nats://joe:12?s3cret@h", "nats://joe:12#s3cret@h:4222",
        "mlp://joe:12/s3cret@h:9999/stream", "nats://joe:12,s3cret@h", "nats://joe:s3cret,tail://@h",
        "mlp://joe:s3cret@h:9999/stream", "memory://joe:s3cret@h", "nats://joe:12@s3cret@h:0", "ftp://joe:12@s3cret@h",
        "nats://joe:12@s3cret@h,memory://b", "joe:12/s3cret@h",
    ],
)  # fmt: skip
def test_a_login_that_would_be_taken_for_something_else_is_refused_and_not_quoted(url: str) -> None:
    """Else the client connects to joe:12, and errors, logs and the names of servers tell of it."""
    with pytest.raises(OptionError) as e:
        SinkOptions.parse({"url": url})
    assert not {"joe", "12", "s3cret", "tail"} & set(re.findall(r"\w+", str(e.value)))


def test_a_scheme_may_be_in_capitals() -> None:
    assert SinkOptions.parse({"url": "TLS://h,Nats://g"}).url == ("tls://h", "nats://g")
    assert NatsSettings(("TLS://h",)).wants_tls


@each(
    ("url", "servers"),
    [
        ("one:4222,two:4222", ("nats://one:4222", "nats://two:4222")),
        ("tls://one,two,nats://three,four", ("tls://one", "tls://two", "nats://three", "nats://four")),
    ],
)
def test_a_server_without_a_scheme_has_that_of_the_one_before_it(url: str, servers: tuple[str, ...]) -> None:
    assert SinkOptions.parse({"url": url}).url == servers
