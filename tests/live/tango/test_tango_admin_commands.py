"""Commands of the admin device of an event source, beside those of PyTango's servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings

from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.servers import BEAT, DeviceProbe, Failed, TangoServer

DEVICE = "test/pub/1"
NONE = "no/such/device"
#: Commands with the same answer as a server of PyTango 10.3.1 that polls, locks and logs nothing. ``@`` is the device,
#: ``%`` its class.
SAME: list[tuple[str, Any]] = [
    ("DevPollStatus", "@"), ("DevPollStatus", NONE), ("DevLockStatus", "@"), ("QuerySubDevice", None),
    ("GetLoggingLevel", ["@"]), ("PolledDevice", None), ("QueryWizardClassProperty", "%"),
    ("QueryWizardDevProperty", "%"), ("StopPolling", None), ("StartPolling", None), ("UnLockDevice", [[0], ["@"]]),
    ("ReLockDevices", ["@"]), ("RemObjPolling", ["@", "attribute", "level"]),
    ("UpdObjPollingPeriod", [[1000], ["@", "attribute", "level"]]), ("StopLogging", None), ("StartLogging", None),
    ("EnableEventSystemPerfMon", True),
]  # fmt: skip
REFUSED: list[tuple[str, Any]] = [
    ("AddObjPolling", [[1000], ["@", "attribute", "level"]]), ("LockDevice", [[5], ["@"]]),
    ("SetLoggingLevel", [[3], ["@"]]), ("AddLoggingTarget", ["@", "console::cout"]), ("DevRestart", "@"),
    ("RestartServer", None), ("Kill", None),
]  # fmt: skip


def answer(client: DeviceProbe, address: str, device: str, name: str, argument: Any) -> str:
    """Result or reason, with ``@`` for the device and ``%`` for its class."""
    device_class = "EventSource" if device == DEVICE else "Lab"
    given = json.loads(json.dumps(argument).replace("@", device).replace("%", device_class))
    try:
        return json.dumps(client.call("admin", device=address, name=name, argument=given)).replace(device, "@")
    except Failed as error:
        return error.reasons[0]


@pytest.mark.parametrize("release", RELEASES)
def test_commands_answer_as_those_of_a_server_without_polling_locks_and_sub_devices(
    lab: TangoServer, release: int, tmp_path: Path
) -> None:
    with (
        TangoEventSource([Device(DEVICE, [Attribute("level")])], SourceSettings(heartbeat_period=BEAT)) as source,
        DeviceProbe(tmp_path / "client", release=release) as client,
    ):
        address = source.address(DEVICE)
        real = {name: answer(client, lab.address(), lab.devices[0], name, argument) for name, argument in SAME}
        ours = {name: answer(client, address, DEVICE, name, argument) for name, argument in SAME}
        assert ours == real
        for name, argument in REFUSED:
            assert answer(client, address, DEVICE, name, argument) == "API_NotSupported", name
        assert source.running


def test_all_commands_of_a_server_are_there_but_those_of_telemetry(lab: TangoServer, probe: DeviceProbe) -> None:
    def commands(address: str) -> set[str]:
        return set(probe.call("commands", device=address))

    with TangoEventSource([Device(DEVICE)], SourceSettings(heartbeat_period=BEAT)) as source:
        real = commands(f"tango://127.0.0.1:{lab.port}/{lab.admin}#dbase=no")
        ours = commands(source.address(source.admin))
    assert {name for name in real - ours if "Telemetry" not in name} == {"EventSubscriptionChange", "Init"}
    assert ours <= real
