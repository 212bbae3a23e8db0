"""Old names of modules and classes, for one release: each still works, warns, and names its successor.

The tables are data of the renaming that came with this release; they go with the next one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Old module -> new module, below this package.
MODULES = {
    "bridges.nats.bridge": "bridges.nats.publish.bridge",
    "bridges.nats.serve": "bridges.nats.server.serve",
    "flightlog.dead_letters": "flightlog.dead_letter_table",
    "log": "record_log",
    "malamute.backlog": "services.malamute_broker.session.engine_backlog",
    "malamute.blocks": "malamute.protocol.message_blocks",
    "malamute.broker": "services.malamute_broker.broker.broker",
    "malamute.broker_loop": "services.malamute_broker.broker.loop",
    "malamute.broker_settings": "services.malamute_broker.broker.settings",
    "malamute.client_desk": "malamute.client.log_query_client",
    "malamute.client_machine": "malamute.client.state_machine",
    "malamute.clients": "services.malamute_broker.session.settings",
    "malamute.configuration": "services.malamute_broker.configuration",
    "malamute.credit": "malamute.protocol.credit",
    "malamute.engines": "services.malamute_broker.engines",
    "malamute.engines.actor": "services.malamute_broker.engines.engine_handle",
    "malamute.engines.dedup": "services.malamute_broker.engines.durable.dedup",
    "malamute.engines.durable": "services.malamute_broker.engines.durable.engine",
    "malamute.engines.durable_answers": "services.malamute_broker.engines.durable.log_queries",
    "malamute.engines.durable_log": "services.malamute_broker.engines.durable.log",
    "malamute.engines.durable_settings": "services.malamute_broker.engines.durable.settings",
    "malamute.engines.durable_store": "services.malamute_broker.engines.durable.store",
    "malamute.engines.frames": "services.malamute_broker.engines.frame_columns",
    "malamute.engines.jetstream": "services.malamute_broker.engines.jetstream.engine",
    "malamute.engines.jetstream_feed": "services.malamute_broker.engines.jetstream.ordered_consumer",
    "malamute.engines.jetstream_names": "services.malamute_broker.engines.jetstream.message_codec",
    "malamute.engines.jetstream_sender": "services.malamute_broker.engines.jetstream.async_publisher",
    "malamute.engines.jetstream_settings": "services.malamute_broker.engines.jetstream.settings",
    "malamute.engines.ledger": "services.malamute_broker.engines.ack_tracker",
    "malamute.engines.readers": "services.malamute_broker.engines.subscription_cursor",
    "malamute.engines.records": "services.malamute_broker.engines.records",
    "malamute.engines.selectors": "services.malamute_broker.engines.subscription_index",
    "malamute.engines.simple": "services.malamute_broker.engines.simple",
    "malamute.engines.standing": "malamute.protocol.ttl",
    "malamute.events": "services.malamute_broker.session.broker_events",
    "malamute.extensions": "malamute.protocol.extensions",
    "malamute.greeting": "malamute.client.zmtp_probe",
    "malamute.letters": "services.malamute_broker.session.mailboxes.mailbox_store",
    "malamute.link": "malamute.client.connection",
    "malamute.metrics": "services.malamute_broker.broker.metrics",
    "malamute.patterns": "malamute.protocol.patterns",
    "malamute.questions": "malamute.protocol.log_query",
    "malamute.queues": "services.malamute_broker.session.byte_queue",
    "malamute.security": "services.malamute_broker.broker.security",
    "malamute.serve": "services.malamute_broker.serve",
    "malamute.server_desk": "services.malamute_broker.session.streams.log_query_server",
    "malamute.server_machine": "services.malamute_broker.session.state_machine",
    "malamute.server_mail": "services.malamute_broker.session.mailboxes.mailbox_server",
    "malamute.server_outbox": "services.malamute_broker.session.delivery_scheduler",
    "malamute.server_states": "services.malamute_broker.session.states",
    "malamute.shelf": "services.malamute_broker.broker.stream_catalog",
    "malamute.waiting": "malamute.zmq_fd_poller",
    "malamute.wire": "malamute.protocol.commands",
    "mama.bridge_publisher": "mama.publisher.bridge_publisher",
    "mama.broker_events": "mama.discovery.broker_events",
    "mama.delivery": "mama.callback_delivery",
    "mama.discovered": "mama.discovery.discovery_rows",
    "mama.dq": "mama.publisher.dq",
    "mama.dq_manager": "mama.publisher.dq_manager",
    "mama.events": "mama.messages.event_records",
    "mama.fieldtype": "mama.messages.field_types",
    "mama.frames": "openmama_wire.protocol.framings",
    "mama.loop": "mama.bridge_loop",
    "mama.msg": "mama.messages.msg",
    "mama.naming": "openmama_wire.protocol.naming",
    "mama.omnm": "mama.messages.omnm",
    "mama.partition_events": "mama.publisher.partition_events",
    "mama.sources": "mama.messages.source_records",
    "mama.status": "mama.messages.status",
    "mama.values": "mama.messages.values",
    "packing.form": "packing.format",
    "publisher.block": "sending.flight_batch",
    "publisher.flight": "sending.flight",
    "publisher.intake": "publisher.managed.publish_queue",
    "publisher.lasting": "publisher.resilient_publisher",
    "publisher.pump": "publisher.batch_publisher",
    "publisher.retry": "options.window",
    "publisher.runners": "publisher.managed.loops",
    "publisher.sends": "sending.send_index",
    "publisher.teller": "publisher.managed.callbacks",
    "publisher.window": "sending.window",
    "spark.discovery_tables": "spark.discovery.tables",
    "spark.flight_log": "spark.read_flight_log",
    "spark.settled": "spark.sink.outcomes",
    "spark.task": "spark.sink.partition_writer",
    "tango.anyvalue": "tango.idl.any_value",
    "tango.attributes": "tango.client.device_proxy",
    "tango.calls": "tango.idl.calls",
    "tango.cdr": "tango.giop.cdr",
    "tango.channels": "tango.client.zmq_event_receiver",
    "tango.counters": "tango.events.sequence_tracker",
    "tango.criteria": "services.tango_server.event_filters",
    "tango.delivery": "tango.client.event_delivery",
    "tango.device": "services.tango_server.device",
    "tango.fastpath": "tango.events.batch_decoder",
    "tango.frames": "tango.events.frames",
    "tango.inbox": "tango.client.event_queue",
    "tango.ior": "tango.giop.ior",
    "tango.life": "tango.client.subscription_states",
    "tango.lives": "tango.client.subscription_machine",
    "tango.negotiation": "tango.idl.negotiation",
    "tango.notices": "tango.client.subscription_events",
    "tango.owed": "tango.log.pending_gaps",
    "tango.reading": "tango.client.subscription_calls",
    "tango.recorder": "services.tango_recorder.recorder",
    "tango.recorder_settings": "services.tango_recorder.settings",
    "tango.recording": "tango.log.recorder_state",
    "tango.records": "tango.log.records",
    "tango.restoring": "tango.log.recovery",
    "tango.routes": "tango.client.event_dispatcher",
    "tango.rpc": "tango.client.device_proxy",
    "tango.scalars": "tango.events.frame_layout",
    "tango.serving": "services.tango_server.replay.log_replayer",
    "tango.source": "services.tango_server.event_source",
    "tango.source_admin": "services.tango_server.dserver_servant",
    "tango.source_batch": "services.tango_server.value_batches",
    "tango.source_board": "services.tango_server.event_supplier",
    "tango.source_channels": "services.tango_server.attribute_state",
    "tango.source_commands": "services.tango_server.command_list",
    "tango.source_machine": "services.tango_server.device_servant",
    "tango.source_readings": "services.tango_server.attribute_readings",
    "tango.source_service": "services.tango_server.giop_server",
    "tango.source_sockets": "services.tango_server.zmq_publisher",
    "tango.structs": "tango.idl.structs",
    "tango.subscriber": "tango.client.subscriber",
    "tango.subscription": "tango.client.subscription",
    "tango.typecode": "tango.giop.typecode",
    "tango.union": "tango.idl.union",
    "tango.values": "tango.idl.values",
    "testing.engine_questions": "testing.engine_query_suite",
    "testing.engine_site": "testing.engine_setup",
}
#: New module -> old name -> new name.
NAMES: dict[str, dict[str, str]] = {
    "bridge": {
        "Polled": "PollResult",
        "Prepared": "ValidationResult",
        "Letter": "RequestMessage",
        "Change": "DiscoveryEvent",
        "ChangeKind": "DiscoveryEventKind",
    },
    "bridges": {"NotOffered": "UnsupportedFeature"},
    "errors": {
        "Pace": "Backpressure",
        "Refused": "Rejected",
        "Overrun": "RateLimited",
        "InProcess": "DuplicateInFlight",
        "Uncertain": "OutcomeUnknown",
        "NotSent": "BlockedByPredecessor",
        "LoopDied": "BackgroundTaskFailed",
    },
    "malamute.client.connection": {"Link": "ClientConnection", "LinkSettings": "ConnectionSettings"},
    "malamute.client.log_query_client": {"ClientDesk": "LogQueryClient", "Asked": "PendingQuery"},
    "malamute.client.state_machine": {"State": "ClientState", "Event": "ClientEvent", "Settings": "ClientSettings"},
    "malamute.protocol.credit": {"Shares": "CreditAllocator", "Allowance": "SendWindow"},
    "malamute.protocol.extensions": {"Outcome": "StoreOutcome", "NOTHING": "NO_EXTENSION"},
    "malamute.protocol.log_query": {
        "Question": "LogQuery",
        "Answer": "LogQueryAnswer",
        "parse_question": "parse_query",
    },
    "malamute.protocol.message_blocks": {"Block": "MessageBlock"},
    "malamute.protocol.ttl": {
        "Standing": "ExpiryQueue",
        "Keeper": "TtlTracker",
        "Wish": "TtlDirective",
        "wish_of": "ttl_directive_of",
    },
    "malamute.zmq_fd_poller": {"Waiter": "ZmqFdPoller"},
    "mama.bridge_loop": {"Outcome": "SendOutcome", "Waiter": "SendListener", "Sent": "PendingSend"},
    "mama.callback_delivery": {"Delivery": "CallbackDelivery"},
    "mama.discovery.discovery_rows": {"Row": "DiscoveryRow", "Reader": "DiscoveryRowReader"},
    "mama.messages.source_records": {"BadRecord": "BadSourceRecord"},
    "packing.format": {"Form": "PackFormat"},
    "publisher.managed.callbacks": {"Cargo": "PendingBatch", "Teller": "CallbackDispatcher"},
    "publisher.managed.loops": {"Runners": "PublisherLoops"},
    "publisher.managed.publish_queue": {"Intake": "PublishQueue"},
    "publisher.resilient_publisher": {"LastingPublisher": "ResilientPublisher"},
    "record_log": {"Log": "RecordLog", "LogBridge": "RecordLogBridge"},
    "sending.flight": {"State": "FlightState", "Step": "Transition", "IllegalStep": "IllegalFlightStep"},
    "sending.flight_batch": {"Block": "FlightBatch", "Counters": "FlightCounters"},
    "sending.send_index": {"Sends": "SendRange", "SendBook": "SendIndex"},
    "sending.window": {"Policy": "WindowConfig"},
    "services.malamute_broker.broker.loop": {"Loop": "BrokerLoop"},
    "services.malamute_broker.broker.metrics": {"Told": "BrokerState", "text": "exposition", "TEXT": "CONTENT_TYPE"},
    "services.malamute_broker.broker.security": {"Guard": "ZapHandler"},
    "services.malamute_broker.broker.stream_catalog": {"Shelf": "StreamCatalog"},
    "services.malamute_broker.engines.ack_tracker": {"Runs": "OutcomeRuns", "Ledger": "AckTracker"},
    "services.malamute_broker.engines.engine_handle": {
        "Taken": "CommandDone",
        "Died": "EngineFailed",
        "Returned": "CreditReturned",
        "Answered": "QueryAnswered",
        "Stream": "EngineHandle",
        "Traffic": "ReportSocket",
    },
    "services.malamute_broker.engines.durable.store": {"Store": "MessageStore"},
    "services.malamute_broker.engines.jetstream.async_publisher": {
        "Post": "PendingPublish",
        "Sender": "AsyncPublisher",
    },
    "services.malamute_broker.engines.jetstream.message_codec": {"Letter": "JetStreamMessage"},
    "services.malamute_broker.engines.jetstream.ordered_consumer": {
        "Place": "JetStreamReader",
        "Tail": "OrderedConsumer",
        "Item": "ConsumedMessage",
    },
    "services.malamute_broker.engines.records": {"Message": "LogMessage"},
    "services.malamute_broker.engines.subscription_cursor": {"Reader": "SubscriptionCursor"},
    "services.malamute_broker.engines.subscription_index": {"Selectors": "SubscriptionIndex"},
    "services.malamute_broker.session.engine_backlog": {"Behind": "EngineBacklogPolicy"},
    "services.malamute_broker.session.delivery_scheduler": {"Outbox": "DeliveryScheduler", "octets": "frames_size"},
    "services.malamute_broker.session.streams.log_query_server": {
        "Shelf": "ReadableStreams",
        "NoShelf": "NoReadableStreams",
        "Desk": "LogQueryServer",
    },
    "services.malamute_broker.session.mailboxes.mailbox_server": {"Mail": "MailboxServer"},
    "services.malamute_broker.session.mailboxes.mailbox_store": {"Letter": "MailboxMessage", "Store": "MailboxStore"},
    "services.malamute_broker.session.settings": {"Settings": "SessionSettings"},
    "services.malamute_broker.session.states": {"State": "SessionState", "Event": "SessionEvent"},
    "services.tango_recorder.recorder": {"Writer": "RecordWriter"},
    "services.tango_server.attribute_state": {"Channel": "EventChannel", "Slot": "AttributeState"},
    "services.tango_server.device_servant": {"SourceMachine": "DeviceServant"},
    "services.tango_server.dserver_servant": {"AdminDesk": "DServerServant"},
    "services.tango_server.event_supplier": {"Board": "EventSupplier"},
    "services.tango_server.giop_server": {"Desk": "RequestHandler", "Service": "GiopServer"},
    "services.tango_server.replay.log_replayer": {
        "Source": "ReplayTarget",
        "Counts": "ReplayCounts",
        "Serving": "LogReplayer",
    },
    "services.tango_server.attribute_readings": {"Reading": "AttributeReading"},
    "services.tango_server.zmq_publisher": {"Outlet": "ZmqPublisher"},
    "spark.sink.outcomes": {"Tally": "OutcomeCounts", "is_guilty": "is_final"},
    "spark.sink.partition_writer": {"TaskFacts": "TaskInfo", "task_facts": "task_info"},
    "spark.subscribe.data_source": {"Part": "LogPartition"},
    "tango.client.zmq_event_receiver": {"Channels": "ZmqEventReceiver"},
    "tango.client.event_delivery": {"Delivery": "EventDelivery"},
    "tango.client.subscription_calls": {"Known": "NegotiatedSubscription", "Desk": "DeviceConnectionPool"},
    "tango.client.event_dispatcher": {"Routes": "EventDispatcher", "Counts": "DispatchCounts", "Target": "EventTarget"},
    "tango.client.event_queue": {"Inbox": "EventQueue"},
    "tango.client.device_proxy": {"Connection": "RpcConnection", "Device": "DeviceProxy"},
    "tango.client.subscription_events": {
        "Kind": "SubscriptionEventKind",
        "Lost": "QueueOverflow",
        "Notice": "SubscriptionEvent",
        "Batch": "EventBatch",
        "decode_notices": "decode_events",
    },
    "tango.client.subscription": {"SubMode": "EventSubMode"},
    "tango.client.subscription_machine": {"Lives": "SubscriptionMachine"},
    "tango.client.subscription_states": {
        "State": "SubscriptionState",
        "Step": "MachineEvent",
        "Reading": "ReadReason",
        "Times": "Timeouts",
        "Wanted": "SubscriptionRequest",
        "Agreement": "NegotiatedChannel",
        "Listen": "SubscribeTopic",
        "Unlisten": "UnsubscribeTopic",
        "Read": "ReadValue",
        "Tell": "ReportError",
        "TellState": "ReportAvailability",
        "Confirm": "ConfirmSubscription",
        "Illegal": "IllegalTransition",
    },
    "tango.events.batch_decoder": {"Columns": "EventColumns"},
    "tango.events.sequence_tracker": {
        "Gap": "SequenceGap",
        "Restart": "SequenceRestart",
        "Seen": "SequenceResult",
        "Counters": "SequenceTracker",
    },
    "tango.events.frame_layout": {"Shape": "FrameLayout", "shape_of": "layout_of"},
    "tango.giop.assembler": {"Splitter": "MessageAssembler"},
    "tango.giop.cdr": {"Reader": "CdrReader", "Writer": "CdrWriter"},
    "tango.giop.messages": {
        "Message": "GiopMessage",
        "Request": "GiopRequest",
        "Reply": "GiopReply",
    },
    "tango.giop.typecode": {"Kind": "TypeKind"},
    "tango.idl.calls": {"Source": "DevSource", "Client": "ClientIdent"},
    "tango.log.pending_gaps": {"Owed": "PendingGaps"},
    "tango.log.recorder_state": {"Device": "RecordedDevice", "Lines": "RecordBuilder", "Recording": "RecorderState"},
    "tango.log.records": {
        "Kind": "RecordKind",
        "Cause": "GapCause",
        "BadRecord": "BadEventRecord",
        "Frames": "RecordFrames",
        "Heads": "RecordHeads",
        "Recorded": "DecodedRecords",
    },
    "testing.discovery_suite": {"DiscoverySite": "DiscoverySetup", "told": "read_events"},
    "testing.log_suite": {"LogSite": "LogSetup"},
    "testing.waiting": {"PATIENCE": "TIMEOUT"},
    "testing.engine_query_suite": {"Asker": "QueryClient", "QuestionRules": "QueryRules"},
}
_ROOT = __name__.rpartition(".")[0]
#: Old packages: their modules are found through them.
_PACKAGES = {old.rpartition(".")[0] for old in MODULES}


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel=3)


def successor(module: str, name: str) -> Any:
    """What ``name`` of a module is called now.

    :raises AttributeError: it never had such a name
    """
    new = NAMES.get(module.removeprefix(_ROOT + "."), {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name}", f"{module}.{new}")
    return getattr(import_module(module), new)


def lazy(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """``__getattr__`` of a package whose names are imported when they are first used."""

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        for home in dict.fromkeys(homes.values()):
            if name in NAMES.get(f"{package}.{home}".removeprefix(_ROOT + "."), {}):
                return successor(f"{package}.{home}", name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


class _Moved(ModuleType):
    """An old module: every name comes from the new one."""

    def __getattr__(self, name: str) -> Any:
        new = MODULES.get(self.__name__.removeprefix(_ROOT + "."))
        if name.startswith("__") or new is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = import_module(f"{_ROOT}.{new}")
        return getattr(module, name) if hasattr(module, name) else successor(module.__name__, name)


class _Finder:
    """Last in ``sys.meta_path``: asked only for what is nowhere else."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        short = name.removeprefix(_ROOT + ".")
        if short == name or (short not in MODULES and short not in _PACKAGES):
            return None
        return ModuleSpec(name, cls, is_package=short in _PACKAGES)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        new = MODULES.get(spec.name.removeprefix(_ROOT + "."))
        if new is not None:
            _warn(spec.name, f"{_ROOT}.{new}")
        return _Moved(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing: names are looked up when they are used."""


def install() -> None:
    """Let imports find old modules."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
