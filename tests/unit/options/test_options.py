"""Options are declared once; everything that the user can get wrong is named."""

from __future__ import annotations

import argparse
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import OptionError
from mama_spark.openmama.commands import mama_source
from mama_spark.options import SinkOptions, camel, markdown, option_names

from tests.support.tables import each


def test_defaults_work_without_any_option() -> None:
    o = SinkOptions.parse({})
    assert o.url == ("nats://127.0.0.1:4222",)
    assert (o.max_in_flight, o.window.refill_allowed_at, o.wait_timeout, o.retry_deadline) == (4096, 2048, 5.0, 30.0)
    assert (o.ack_mode, o.dedup, o.on_error, o.flight_log_level) == ("auto", True, "fail", "outcomes")


def test_refill_follows_a_smaller_window() -> None:
    assert SinkOptions.parse({"MAXINFLIGHT": "10"}).window.refill_allowed_at == 5
    assert SinkOptions.parse({"maxInFlight": "1"}).window.refill_allowed_at == 0


@each(
    ("given_options", "said"),
    [
        ({"maxInFligth": "5"}, "did you mean 'maxInFlight'"),
        ({"maxInFlight": "0"}, "must be from 1"),
        ({"maxInFlight": "5", "refillAllowedAt": "5"}, "option refillAllowedAt must be from 0 to maxInFlight - 1"),
        ({"waitTimeout": "soon"}, "such as 500ms"),
        ({"ackMode": "bach"}, "did you mean 'batch'"),
        ({"url": "http://x"}, "unknown scheme http"),
        ({"url": "wss://x:9222"}, "; websockets are not used: name the port for clients, as nats:// or tls://"),
        ({"url": "nats://a,memory://b"}, "different middlewares"),
        ({"url": "nats://host:99999"}, "bad port"),
        ({"url": ""}, "at least one server"),
        ({"url": "nats://a", "servers": "nats://b"}, "given twice"),
        ({"txnAppId": "a"}, "go together"),
        ({"tlsCert": "a"}, "go together"),
        ({"password": "a"}, "needs user"),
        ({"user": "a", "token": "b"}, "exclude each other"),
        ({"jsDomain": "leaf", "jsApiPrefix": "JS.a"}, "options jsDomain and jsApiPrefix exclude each other"),
        ({"jsDomain": "a.b"}, "option jsDomain must be one word"),
        ({"jsApiPrefix": "JS.*"}, "option jsApiPrefix must be the beginning of a subject"),
        ({"url": "mlp://h", "jsDomain": "leaf"}, "option jsDomain is for NATS"),
        ({"onError": "deadletter"}, "needs deadLetterTopic or deadLetterTable"),
        ({"deadLetterTopic": "d"}, "needs onError=deadletter"),
        ({"onError": "log"}, "needs flightLog"),
        ({"flightLogLevel": "all"}, "flightLogLevel needs flightLog"),
        ({"flightLogColumns": "a"}, "flightLogColumns needs flightLog or deadLetterTable"),
        ({"ackMode": "none", "order": "partition"}, "needs acknowledgements"),
        ({"retryBackoff": "10s"}, "longer than retryMaxBackoff"),
        ({"onUnavailable": "wait", "retryAttempts": "3"}, "leave out retryAttempts"),
        ({"onUnavailable": "wait", "retryDeadline": "9s"}, "at least twice waitTimeout"),
        ({"onUnavailable": "wait", "errorTolerance": "all"}, "exclude each other"),
        ({"topic": "a b"}, "blanks"),
        ({"token": " "}, "must not be empty"),
        ({"pack": "lines", "order": "partition"}, "order=partition does not go with pack"),
        ({"packMaxRows": "5"}, "packMaxRows needs pack"),
        ({"pack": "lines", "packCompressionLevel": "3"}, "needs packCompression"),
        ({"pack": "lines", "packCompression": "lz4", "packCompressionLevel": "13"}, "lz4 has levels 1 to 12"),
        ({"pack": "off", "packMaxBytes": "500"}, "packMaxBytes needs pack"),
    ],
)
def test_what_is_wrong_is_named(given_options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as e:
        SinkOptions.parse(given_options)
    assert said in str(e.value)


@given(st.text(max_size=20))
def test_a_value_is_taken_or_refused_never_anything_else(text: str) -> None:
    for name in option_names(SinkOptions):
        with contextlib.suppress(OptionError):
            SinkOptions.parse({name: text})


def test_every_option_is_documented() -> None:
    text = markdown()
    for name in option_names(SinkOptions):
        assert f"`{name}`" in text
    assert camel("max_rate_per_partition") == "maxRatePerPartition"


SEED = f"SU{'A7' * 28}"
JWT = f"eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.{'x' * 90}.{'y' * 86}"
CREDENTIALS = f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------\n{SEED}\n"


@each("name", ["credentials", "nkeySeed", "tlsCa", "tlsCert", "tlsKey"])
@each("content", [SEED, JWT, CREDENTIALS, CREDENTIALS.replace("\n", " ")])
def test_the_content_of_a_file_is_not_taken_for_its_path(name: str, content: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} must be the path of a file, and is the content") as e:
        SinkOptions.parse({name: content})
    assert not {SEED, JWT} & set(str(e.value).split())


@pytest.mark.parametrize("name", ["flightLog", "deadLetterTable"])
def test_a_login_in_the_url_of_a_table_is_refused(name: str) -> None:
    for uri in ("s3://joe:s3cret@bucket/log", "s3a://joe:12/s3cret@bucket", "gs://s3cret@bucket"):
        with pytest.raises(OptionError, match=r"storage\.aws_access_key_id") as e:
            SinkOptions.parse({name: uri})
        assert "s3cret" not in str(e.value)
    for uri in ("abfss://box@account.dfs.core.windows.net/log", "s3://bucket/team@lab/log", "/tmp/a@b", "file:///a@b"):
        more = {} if name == "flightLog" else {"onError": "deadletter"}
        assert uri in repr(SinkOptions.parse({name: uri, **more}))


@each("url", ["nats://h", "mlp://h/s", "oz://h:1", "memory://m"])
def test_a_topic_prefix_with_or_without_its_dot_is_one_prefix_in_every_middleware(url: str) -> None:
    found = {SinkOptions.parse({"url": url, "topicPrefix": given}).topic_prefix for given in ("a.b", "a.b.", " a.b.. ")}
    assert found == {"a.b"}
    with pytest.raises(OptionError, match="topicPrefix must not be empty"):
        SinkOptions.parse({"url": url, "topicPrefix": "."})


def test_a_topic_prefix_of_a_command_is_read_as_that_of_the_option() -> None:
    parser = argparse.ArgumentParser()
    mama_source.add_arguments(parser)
    for text, prefix in (("a.b", "a.b"), ("a.b.", "a.b"), ("", "")):
        read = parser.parse_args(["--url", "nats://h/S", "--source", "S", "--topic-prefix", text])
        assert read.topic_prefix == prefix
