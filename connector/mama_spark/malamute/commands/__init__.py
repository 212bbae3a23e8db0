"""Subcommands of ``mama`` for Malamute."""

from ...console.help import Subcommand

__all__ = ["COMMANDS"]

COMMANDS = {
    "broker": Subcommand(
        "mama_spark.malamute.commands.broker",
        "run a Malamute broker until Ctrl-C", "malamute",
        examples=("mama broker", "mama broker --bind tcp://127.0.0.1:9999 --conf-file conf/broker.toml"),
    ),
}  # fmt: skip
