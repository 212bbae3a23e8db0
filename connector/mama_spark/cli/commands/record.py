"""``mama record``: records Tango events, or OpenMAMA messages, in a record log until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...console.arguments import add_metrics, add_option, add_url, named_url, pairs
from ...console.exit_codes import NOT_ALL
from ...console.output import print_error, say_as
from ...console.signals import stop_on_signals
from ...contracts.errors import ConfigError
from ...contracts.middlewares import of_url
from ...contracts.record_log import RecordLog, RecordLogBridge
from ...contracts.redaction import redact_url
from ...mama.properties import TRANSPORT_KEYS
from ...options import SinkOptions, command
from ...options.conf_file import as_options, load
from ...options.urls import split_stream
from ...packing.pack_headers import rows_of_messages
from ...publishing.resilient_publisher import ResilientPublisher
from ...publishing.window.reconnecting import ask_logs
from ...recording.recorder import Recorder, RecorderSettings, RecordSource
from ...registry import part, publisher_bridge
from ...telemetry.metrics_server import served_metrics

_USE = command(
    "record",
    *("stream", "create_stream", "ack_mode", "dedup", "order", "on_uncertain"),
    *("max_in_flight", "wait_timeout", "retry_deadline"),
)
#: Containers made between two garbage collections, about 70,000 events: waiting events form no cycles, and searching
#: them for cycles costs a fifth of the processor time.
_COLLECT_AFTER = 200_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser, "tango://host:port of the database (of a server with #dbase=no), or oz://host:5756 of OpenMAMA")
    parser.add_argument("--to", metavar="LOG", help="log: nats://host:4222/STREAM or mlp://host:9999/stream")
    parser.add_argument(
        "--conf-file",
        type=Path,
        metavar="FILE.toml",
        help="all settings: conf/tango-record.toml, conf/openmama-record.toml",
    )
    parser.add_argument(
        "--device", action="append", dest="devices", metavar="NAME", help="device or pattern; may be repeated"
    )
    parser.add_argument("--attribute", action="append", dest="attributes", metavar="NAME", help="attribute or pattern")
    parser.add_argument(
        "--event", action="append", dest="events", metavar="TYPE", help="type of events: change, archive, ..."
    )
    parser.add_argument(
        "--topic", action="append", dest="topics", metavar="NAME", help="OpenMAMA: topic; OM.>: all that begin so"
    )
    parser.add_argument(
        "--symbol", action="append", dest="symbols", metavar="SOURCE.SYMBOL", help="OpenMAMA: market data with images"
    )
    parser.add_argument("--properties", type=Path, metavar="FILE", help="OpenMAMA: mama.properties, instead of --url")
    parser.add_argument("--transport", metavar="NAME", help="OpenMAMA: transport in that file")
    parser.add_argument("--framing", choices=("oz", "zmq"), help="OpenMAMA: the bridge of that network (default: oz)")
    parser.add_argument("--name", help="name of the recorder, unique in its log")
    add_metrics(parser)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    add_option(parser, "for the log")


_GIVEN = ("name", "metrics", *TRANSPORT_KEYS, "devices", "attributes", "events", "topics", "symbols")


def settings_of(args: argparse.Namespace) -> tuple[RecorderSettings, SinkOptions]:
    """Settings from the file, and what the command line says instead.

    :raises ConfigError: names what is wrong
    """
    tables: dict[str, dict[str, Any]] = {"recorder": {}, "log": {}}
    if args.conf_file is not None:
        tables = load(args.conf_file, tables)
    given = dict(tables["recorder"])
    if (url := named_url(args)) is not None:
        given["url"] = url
    given.update({name: value for name in _GIVEN if (value := getattr(args, name)) is not None})
    options = as_options(tables["log"]) if tables["log"] else {}
    options.update(pairs(args.option, "--option"))
    if args.to is not None:
        options = {
            **{k: v for k, v in options.items() if k.lower() not in ("url", "servers", "stream")},
            "url": args.to,
        }
    if "url" not in {name.lower() for name in options}:
        raise ConfigError("where are the records to go? give --to, or url in the table [log]")
    settings: RecorderSettings = part(_middleware(given), "recorder").settings_class.of(given)
    return settings, log_options(options)


def _middleware(given: dict[str, Any]) -> str:
    """Name of what is recorded: by the first URL; only OpenMAMA has transports in a file of properties."""
    url = given.get("url", "")
    first = url if isinstance(url, str) else next(iter(url), "")
    named = not given.keys().isdisjoint(TRANSPORT_KEYS)
    found = None if named else of_url(first.strip())
    return "openmama" if named else "tango" if found is None or found.recorder is None else found.name


def log_options(given: dict[str, str]) -> SinkOptions:
    """Options of ``mamapub`` for the log, with what suits a recorder where they say nothing: order is kept where the
    bridge can.

    :raises ConfigError: something is wrong with them
    """
    names = {name.lower() for name in given}
    ordered = {} if names & {"order", "ackmode", "dedup"} else {"order": "partition", "ackMode": "batch"}
    o = SinkOptions.parse(given, _USE)
    middleware = o.middleware
    if middleware.ordered_batches and ordered:
        o = SinkOptions.parse({**given, **ordered}, _USE)
    if middleware.log_bridge is None:
        raise ConfigError("a log is needed, such as nats://host:4222/STREAM or mlp://host:9999/stream")
    servers, stream = split_stream(o.url)
    if o.stream is None and stream is None and middleware.named_streams:
        raise ConfigError("the log needs a stream: nats://host:4222/STREAM, mlp://host:9999/stream, or option stream")
    return replace(o, url=servers, stream=o.stream or stream)


def run(args: argparse.Namespace) -> int:
    """Record until Ctrl-C or SIGTERM. Exit code 1 when something was not acknowledged by then.

    :raises MamaError: the configuration is wrong, or the log cannot be reached at first
    """
    settings, options = settings_of(args)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="mama: %(message)s")
    with stop_on_signals() as stop, few_collections():
        whole = record(settings, options, stop.is_set, say_as(args.json))
    return stop.exit_code if whole else NOT_ALL


def record(
    settings: RecorderSettings, options: SinkOptions, stop: Callable[[], bool], say: Callable[[str], None]
) -> bool:
    """Record until ``stop``; return whether the log acknowledged everything.

    :raises MamaError: the log or the network cannot be reached at first
    """
    writer = ResilientPublisher(
        lambda: publisher_bridge(options),
        max_in_flight=options.max_in_flight,
        wait_timeout=options.wait_timeout,
        on_rejected=lambda batch, errors: recorder.refused(batch, errors),
        rows_of=rows_of_messages,
    )
    source: RecordSource = part(settings.middleware, "recorder")(settings)
    recorder = Recorder(source, writer, ids=options.dedup)
    try:
        source.resume(partial(_read, options))
        names, kind, network = settings.subject
        what = ", ".join(names) if len(names) <= 3 else f"{len(names)} {kind}"
        where = f"{redact_url(','.join(options.url))} {options.stream or ''}".rstrip()
        say(f"recording {what} of {network} to {where} (Ctrl-C ends it)")
        with served_metrics(settings.metrics, lambda: recorder.counts.metrics(settings.labels), say, print_error):
            whole = recorder.run(stop, say)
        say(f"ended: {recorder.counts}")
        return whole
    finally:
        writer.close()


def _read(options: SinkOptions, work: Callable[[RecordLog], None]) -> None:
    """Call ``work`` with the log that a recorder writes, unless there is no log yet."""

    def read_from(bridge: RecordLogBridge) -> None:
        names = bridge.names(())
        name = options.stream or (names[0] if names else "")
        if name in names:
            work(bridge.log(name))

    ask_logs(options, read_from)


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Freeze the objects that exist now, and collect garbage rarely."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
