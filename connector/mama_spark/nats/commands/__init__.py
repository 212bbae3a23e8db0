"""Subcommands of ``mama`` for NATS."""

from ...console.help import Subcommand

__all__ = ["COMMANDS"]

COMMANDS = {
    "serve": Subcommand(
        "mama_spark.nats.commands.serve",
        "run a NATS server with JetStream and a demo stream until Ctrl-C", "local",
        examples=("mama serve", "mama serve --port 0 --store .run/streams"),
    ),
}  # fmt: skip
