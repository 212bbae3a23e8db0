"""Arguments that several subcommands share."""

from __future__ import annotations

import pytest
from mama_spark.cli import main as cli
from mama_spark.console.arguments import options, pairs, transport
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.options import ANY_USE, SinkOptions

from tests.support.tables import each


def test_every_module_of_a_subcommand_declares_its_arguments() -> None:
    for name in cli.SUBCOMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.parse([name, "--help"])
        assert end.value.code == 0


def test_durations_of_arguments_have_units(capsys: pytest.CaptureFixture[str]) -> None:
    parse = ["tango-source", "memory://a"]
    assert cli.parse([*parse, "--hold", "2m", "--heartbeat", "500ms"]).hold == 120
    assert (cli.parse(parse).hold, cli.parse(parse).heartbeat) == (30, 9)
    ages = [cli.parse(["flights", "sweep", "x", "--older-than", text]).older_than for text in ("90m", "0d")]
    assert ages == [5400, 0]
    with pytest.raises(SystemExit):
        cli.parse([*parse, "--hold", "45"])
    assert "--hold: must be a duration, such as 500ms, 30s, 5m, 2h or 7d (with its unit), got '45'" in " ".join(
        capsys.readouterr().err.split()
    )


@each("wrong", ["s3cret", "=s3cret", " =s3cret"])
def test_an_argument_that_is_no_pair_is_not_shown(wrong: str) -> None:
    with pytest.raises(OptionError, match="--option must be NAME=VALUE") as caught:
        pairs(["a=b", wrong], "--option")
    assert "s3cret" not in str(caught.value)


def test_an_option_that_is_given_twice_is_refused() -> None:
    args = cli.parse(["pub", "t", "--url", "memory://a", "-o", "URL=memory://b"])
    with pytest.raises(OptionError, match="given twice"):
        options(args, SinkOptions, ANY_USE)


def test_check_needs_a_middleware_that_has_a_check() -> None:
    args = cli.parse(["check", "--url", "memory://a"])
    with pytest.raises(ConfigError, match="'memory' has no check"):
        args.run(args)


#: What commands need beside their server; the others have none, or are one.
NEEDED = {"check": [], "sources": [], "events": [], "top": [], "record": [], "tango-source": ["--server", "lab/one"],
          "mama-source": ["--source", "OM"], "pub": ["a.topic"], "sub": ["a.topic"], "audit": ["log"]}  # fmt: skip
SERVERLESS = {"serve", "broker", "nsd", "flights", "report", "jobs", "docs", "completion"}


def test_every_command_names_its_server_in_the_same_way() -> None:
    assert set(NEEDED) == set(cli.SUBCOMMANDS) - SERVERLESS
    for command, more in NEEDED.items():
        assert transport(cli.parse([command, *more, "--url", "nats://host"])) == [("url", "nats://host")]
        assert transport(cli.parse([command, *more])) == []
        if command in ("audit", "pub", "sub"):
            continue
        found = transport(cli.parse([command, "nats://host", *more, "-o", "a=b"]))
        assert found == [("url", "nats://host"), ("a", "b")]
        with pytest.raises(OptionError, match="named twice"):
            transport(cli.parse([command, "nats://host", *more, "--url", "nats://host"]))


@pytest.mark.parametrize("words", [["tango-source"], ["mama-source", "--source", "OM"]])
def test_a_source_without_a_log_says_how_to_name_it(words: list[str]) -> None:
    for url, said in (
        ([], "name the log as URL, or by --url"),
        (["nats://h"], "the URL of the log must name the stream"),
    ):
        args = cli.parse([*words, *url])
        with pytest.raises(OptionError, match=said):
            args.run(args)
