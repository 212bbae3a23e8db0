"""Subcommands of ``mama`` for Tango."""

from ...console.help import Subcommand

__all__ = ["COMMANDS"]

COMMANDS = {
    "tango-source": Subcommand(
        "mama_spark.tango.commands.tango_source",
        "serve the Tango events of a log to Tango clients until Ctrl-C", "tango",
        examples=("mama tango-source nats://host:4222/TANGO --bind 0.0.0.0:10123 --conf-file conf/tango-source.toml",),
    ),
}  # fmt: skip
