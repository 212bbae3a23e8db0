"""What stands before the @ of a URL is shown nowhere."""

from __future__ import annotations

import pytest
from mama_spark.bridges.nats.settings import redact
from mama_spark.errors import OptionError
from mama_spark.options import SinkOptions, redact_url

URLS = ("nats://joe:s3cret@h:4222", "nats://joe:s3@cret@h:4222", "nats://s3cret@h:4222", "nats://@s3cret@h:4222")


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_shown_without_user_and_password(url: str) -> None:
    for shown in (redact_url(url), redact(url), repr(SinkOptions.parse({"url": url}))):
        assert not {"s3", "cret", "joe"} & set(shown.replace("@", " ").replace(":", " ").replace("/", " ").split())
        assert "s3cret" not in shown
        assert "h:4222" in shown


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert redact_url("nats://h:4222/a?b") == redact("nats://h:4222/a?b") == "nats://h:4222/a?b"


def test_a_url_that_is_refused_is_not_quoted() -> None:
    for url in ("nats://joe:s3@cret@h:0", "ftp://joe:s3@cret@h", "nats://joe:s3@cret@h,memory://b"):
        with pytest.raises(OptionError) as e:
            SinkOptions.parse({"url": url})
        assert not {"s3", "cret"} & set(str(e.value).replace("@", " ").replace(":", " ").split())
