"""Subcommands of ``mama`` for OpenMAMA."""

from ...console.help import Subcommand

__all__ = ["COMMANDS"]

COMMANDS = {
    "mama-source": Subcommand(
        "mama_spark.openmama.commands.mama_source",
        "serve the messages of a log to OpenMAMA's market data subscribers until Ctrl-C", "openmama",
        examples=("mama mama-source nats://host:4222/QUOTES --to oz://127.0.0.1:5756 --source OM",),
    ),
    "nsd": Subcommand(
        "mama_spark.openmama.commands.nsd",
        "run a name server for OpenMAMA peers (OZ) until Ctrl-C", "openmama",
        examples=("mama nsd", "mama nsd -i '*' --advertise host -p 5756"),
    ),
}  # fmt: skip
