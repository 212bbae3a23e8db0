"""Every middleware has an extra that exists, and URLs that options and redaction know."""

from __future__ import annotations

from importlib.metadata import metadata

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.contracts.middlewares import MIDDLEWARES, SCHEMES, Middleware
from mama_spark.options import TransportOptions, redact_url

from tests.support.tables import each


@each("name", MIDDLEWARES)
def test_the_extra_of_each_is_one_of_the_package(name: str) -> None:
    extra = MIDDLEWARES[name].extra
    assert extra is None or extra in (metadata("mama-spark").get_all("Provides-Extra") or [])


@each("scheme", SCHEMES)
def test_lists_of_its_urls_are_shown_whole_but_for_logins(scheme: str) -> None:
    assert redact_url(f"{scheme}://a:1,{scheme}://b:2") == f"{scheme}://a:1,{scheme}://b:2"
    assert redact_url(f"{scheme}://a:1,{scheme}://joe:pw@b:2") == f"{scheme}://a:1,{scheme}://***@b:2"


@each("scheme", sorted(SCHEMES.keys() - {"nats", "tls", "memory"}))
def test_an_option_of_another_middleware_is_refused_by_title(scheme: str) -> None:
    title = SCHEMES[scheme].title
    with pytest.raises(OptionError, match=f"jsDomain is for NATS, and the url is of {title}"):
        TransportOptions.parse({"url": f"{scheme}://h:1883", "jsDomain": "hub"})


def test_a_middleware_takes_those_options_of_others_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    acme = Middleware("acme", "Acme", ("acme",), options=("connectTimeout", "tlsCa"))
    monkeypatch.setitem(MIDDLEWARES, "acme", acme)
    monkeypatch.setitem(SCHEMES, "acme", acme)
    taken = TransportOptions.parse({"url": "acme://h", "connectTimeout": "2s", "tlsCa": "/ca.pem"})
    assert (taken.connect_timeout, taken.tls_ca) == (2.0, "/ca.pem")
    with pytest.raises(OptionError, match="jsDomain is for NATS, and the url is of Acme"):
        TransportOptions.parse({"url": "acme://h", "jsDomain": "hub"})
