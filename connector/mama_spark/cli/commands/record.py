"""``mama record``: records Tango events, or OpenMAMA messages, in a record log until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...console.arguments import add_metrics, add_option, add_url, named_url, pairs
from ...console.exit_codes import NOT_ALL
from ...console.output import print_error, say_as
from ...console.signals import stop_on_signals
from ...contracts.errors import ConfigError
from ...contracts.middlewares import MIDDLEWARES
from ...contracts.record_log import RecordLog, RecordLogBridge, RecordWriter
from ...contracts.redaction import redact_url
from ...mama.properties import Properties
from ...openmama.recorder.metrics import measure as measure_openmama
from ...openmama.recorder.recorder import OpenMamaRecorder
from ...openmama.recorder.settings import SCHEMES, OpenMamaRecorderSettings
from ...openmama.wire.peer.property_urls import property_urls
from ...options import SinkOptions, command
from ...options.conf_file import as_options, load
from ...options.urls import split_stream
from ...packing import rows_of_messages
from ...publishing.resilient_publisher import ResilientPublisher
from ...publishing.window.reconnecting import ReconnectingBridge
from ...registry import log_bridge, publisher_bridge
from ...tango.log.recovery import WriterState, restore, writer_states
from ...tango.recorder.metrics import measure as measure_tango
from ...tango.recorder.other_recorders import OtherRecorders
from ...tango.recorder.recorder import Recorder
from ...tango.recorder.settings import RecorderSettings
from ...telemetry.prometheus.exposition import Metric
from ...telemetry.prometheus.server import served_metrics

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
    parser.add_argument("--to", metavar="LOG", help="nats://host:4222/STREAM or mlp://host:9999/stream")
    parser.add_argument(
        "--conf-file",
        type=Path,
        metavar="FILE.toml",
        help="all settings: conf/tango-record.toml, conf/openmama-record.toml",
    )
    parser.add_argument("--device", action="append", dest="devices", metavar="NAME", help="or pattern; may be repeated")
    parser.add_argument("--attribute", action="append", dest="attributes", metavar="NAME", help="or pattern, such as *")
    parser.add_argument("--event", action="append", dest="events", metavar="TYPE", help="change, archive, ...")
    parser.add_argument(
        "--topic", action="append", dest="topics", metavar="NAME", help="OpenMAMA: a topic; OM.> all so"
    )
    parser.add_argument(
        "--symbol", action="append", dest="symbols", metavar="SOURCE.SYMBOL", help="OpenMAMA: market data with images"
    )
    parser.add_argument("--properties", type=Path, metavar="FILE", help="OpenMAMA: mama.properties, instead of --url")
    parser.add_argument("--transport", metavar="NAME", help="OpenMAMA: transport in that file")
    parser.add_argument("--framing", choices=("oz", "zmq"), help="OpenMAMA: the bridge of that network (default: oz)")
    parser.add_argument("--name", help="of the recorder; each of a log has its own")
    add_metrics(parser)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    add_option(parser, "for the log")


_PROPERTY_KEYS = ("properties", "transport", "framing")
#: Arguments that are lists, by the kind of the recorder.
_TANGO_LISTS, _OPENMAMA_LISTS = ("devices", "attributes", "events"), ("topics", "symbols")
AnyRecorderSettings = RecorderSettings | OpenMamaRecorderSettings


def settings_of(args: argparse.Namespace) -> tuple[AnyRecorderSettings, SinkOptions]:
    """From the file, and what the command line says instead.

    :raises ConfigError: names what is wrong
    """
    tables: dict[str, dict[str, Any]] = {"recorder": {}, "log": {}}
    if args.conf_file is not None:
        tables = load(args.conf_file, tables)
    given = dict(tables["recorder"])
    if (url := named_url(args)) is not None:
        given["url"] = url
    for name in ("name", "metrics", *_PROPERTY_KEYS):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    for name in (*_TANGO_LISTS, *_OPENMAMA_LISTS):
        if getattr(args, name):
            given[name] = getattr(args, name)
    options = as_options(tables["log"]) if tables["log"] else {}
    options.update(pairs(args.option, "--option"))
    if args.to is not None:
        options = {
            **{k: v for k, v in options.items() if k.lower() not in ("url", "servers", "stream")},
            "url": args.to,
        }
    if "url" not in {name.lower() for name in options}:
        raise ConfigError("where are the records to go? give --to, or url in the table [log]")
    return _recorder_settings(given), log_options(options)


def _recorder_settings(given: dict[str, Any]) -> AnyRecorderSettings:
    given = _with_urls_of_properties(given)
    url = given.get("url", "")
    first = (url if isinstance(url, str) else next(iter(url), "")).strip().lower()
    return OpenMamaRecorderSettings.of(given) if first.startswith(SCHEMES) else RecorderSettings.of(given)


def _with_urls_of_properties(given: dict[str, Any]) -> dict[str, Any]:
    """With the URLs of a transport of a ``mama.properties`` file, where the settings name one.

    :raises ConfigError: the file cannot be read, or only a part is given
    """
    named = {key: given[key] for key in _PROPERTY_KEYS if key in given}
    rest = {key: value for key, value in given.items() if key not in named}
    if not named:
        return rest
    if "url" in rest or not {"properties", "transport"} <= named.keys():
        raise ConfigError("properties and transport go together, and instead of url: where is the network to record?")
    properties = Properties.load(named["properties"])
    urls = property_urls(properties, named["transport"], named.get("framing", "oz"), receiver=True)
    return {**rest, "url": urls}


def log_options(given: dict[str, str]) -> SinkOptions:
    """Options of ``mamapub`` for the log, with what suits a recorder where they say nothing: order is kept where the
    bridge can.

    :raises ConfigError: something is wrong with them
    """
    names = {name.lower() for name in given}
    ordered = {} if names & {"order", "ackmode", "dedup"} else {"order": "partition", "ackMode": "batch"}
    o = SinkOptions.parse(given, _USE)
    middleware = MIDDLEWARES[o.bridge_name]
    if middleware.ordered_batches and ordered:
        o = SinkOptions.parse({**given, **ordered}, _USE)
    if not middleware.keeps_logs:
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
    settings: AnyRecorderSettings, options: SinkOptions, stop: Callable[[], bool], say: Callable[[str], None]
) -> bool:
    """Record until ``stop``; whether the log acknowledged everything.

    :raises MamaError: the log or the network cannot be reached at first
    """
    writer = ResilientPublisher(
        lambda: publisher_bridge(options),
        max_in_flight=options.max_in_flight,
        wait_timeout=options.wait_timeout,
        on_rejected=lambda batch, errors: recorder.refused(batch, errors),
        rows_of=rows_of_messages,
    )
    log = _Log(options)
    recorder, what = _recorder(settings, writer, options.dedup, log)
    try:
        _restore(recorder, log)
        where = f"{redact_url(','.join(options.url))} {options.stream or ''}".rstrip()
        say(f"recording {what} to {where} (Ctrl-C ends it)")
        with served_metrics(settings.metrics, lambda: _measure(recorder), say, print_error):
            whole = recorder.run(stop, say)
        say(f"ended: {recorder.counts}")
        return whole
    finally:
        if isinstance(recorder, Recorder) and recorder.others is not None:
            recorder.others.stop()
        writer.close()


def _recorder(
    settings: AnyRecorderSettings, writer: RecordWriter, ids: bool, log: _Log
) -> tuple[Recorder | OpenMamaRecorder, str]:
    """The recorder, and what it records."""
    if isinstance(settings, OpenMamaRecorderSettings):
        names = [*settings.topics, *(".".join(symbol) for symbol in settings.symbols)]
        peer = settings.peer
        endpoints = ", ".join(peer.naming or [endpoint.address for endpoint in peer.incoming])
        what = f"{_some(names, 'topics')} of {peer.framing.name} {endpoints}"
        return OpenMamaRecorder(settings, writer, ids=ids), what
    tango = Recorder(settings, writer, ids=ids)
    tango.others = OtherRecorders(log.read, tango.state.topic, tango.started, settings.state_every)
    return tango, f"{_some(settings.devices, 'devices')} of tango://{settings.databases}"


def _measure(recorder: Recorder | OpenMamaRecorder) -> list[Metric]:
    settings = recorder.settings
    if isinstance(recorder, OpenMamaRecorder):
        return measure_openmama(recorder.counts, settings.name, recorder.settings.peer.framing.name)
    return measure_tango(recorder.counts, settings.name)


def _some(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {what}"


class _Log:
    """Reads the log that a recorder writes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def read(self, work: Callable[[RecordLog], None]) -> None:
        """Call a function with the log; not where there is no log yet."""
        options = self._options

        def read_from(bridge: RecordLogBridge) -> None:
            names = bridge.names(())
            name = options.stream or (names[0] if names else "")
            if name in names:
                work(bridge.log(name))

        bridge = ReconnectingBridge(lambda: log_bridge(options, options.wait_timeout), options.wait_timeout)
        try:
            bridge.call(read_from)
        finally:
            bridge.close()


def _restore(recorder: Recorder | OpenMamaRecorder, log: _Log) -> None:
    """Restore the state that the previous recorder of the name left in the log.

    :raises ConfigError: another recorder of the log records the same devices
    """
    if isinstance(recorder, OpenMamaRecorder):
        log.read(recorder.restore)
        return
    assert recorder.others is not None
    found: dict[str, WriterState] = {}
    last = 0

    def restore_from(log: RecordLog) -> None:
        nonlocal found, last
        bounds = log.bounds()
        found, last = writer_states(log, bounds.first, bounds.last), bounds.last
        recorder.check(found)
        restore(recorder.state, log, recorder.settings.records)

    log.read(restore_from)
    recorder.others.begin(found, last)


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
