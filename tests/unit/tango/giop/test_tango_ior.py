"""Object references: IORs of device serversand device names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.giop import ior
from mama_spark.tango.giop.ior import Address, BadAddress, DeviceName, Reference, parse_device, parse_ior
from mama_spark.tango.recorder.settings import TangoRecorderSettings

from tests.support.tables import each

#: of a device of a server with a database, omniORB 4.3.4
RECORDED = (
    "IOR:010000001700000049444c3a54616e676f2f4465766963655f363a312e30000001000000000000009c000000010102000a000000"
    "3132372e302e302e310025b10e000000fe7c76016b00005012000000000000000300000000000000080000000100000000545441010000"
    "001c0000000100000001000100010000000100010509010100010000000901010002545441340000000100000003000000766d00002400"
    "00002f746d702f6f6d6e692d726f6f742f3030303032303439382d3137393532353739383000"
)
HOSTS = st.sampled_from(["localhost", "10.0.0.1", "a-b.example.org", "::1", "fe80::1"])
ADDRESSES = st.builds(Address, HOSTS, st.integers(1, 65535))
REFERENCES = st.builds(
    Reference,
    st.lists(ADDRESSES, min_size=1, max_size=3).map(tuple),
    st.binary(min_size=1, max_size=20),
    st.sampled_from(["", "IDL:Tango/Device_5:1.0"]),
    st.integers(1, 2),
)


def test_the_reference_of_a_real_device_is_read() -> None:
    found = parse_ior(RECORDED)
    assert found.addresses == (Address("127.0.0.1", 45349),)
    assert found.key.startswith(b"\xfe|v\x01k")
    assert len(found.key) == 14
    assert (found.type_id, found.minor) == ("IDL:Tango/Device_6:1.0", 2)


@given(REFERENCES, st.booleans())
def test_references_come_back_from_their_ior(reference: Reference, little: bool) -> None:
    assert parse_ior(ior.format_ior(reference, little)) == reference


@each("text", ["", "IOR:", "IOR:zz", "IOR:02", "ior", "IOR:0100", "IOR:" + "00" * 12, "é"])
def test_invalid_iors_are_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_ior(text)


@each(
    ("text", "expected"),
    [
        ("tango://h:1/A/b/C", DeviceName(Address("h", 1), "a/b/c")),
        ("TANGO://h:1/a/b/c/Attr", DeviceName(Address("h", 1), "a/b/c", "attr")),
        ("tango://127.0.0.1:1/a/b/c#dbase=no", DeviceName(Address("127.0.0.1", 1), "a/b/c", None, False)),
        ("tango://h:1/a/b/c/x#DBASE=YES", DeviceName(Address("h", 1), "a/b/c", "x")),
        ("//h:1/a/b/c", DeviceName(Address("h", 1), "a/b/c")),
        ("tango://[::1]:1/a/b/c", DeviceName(Address("::1", 1), "a/b/c")),
        ("a/b/c", DeviceName(Address("db", 10000), "a/b/c")),
        ("a/b/c/d", DeviceName(Address("db", 10000), "a/b/c", "d")),
    ],
)
def test_names_of_devices_are_read(text: str, expected: DeviceName) -> None:
    found = parse_device(text, "db:10000,other:10000")
    assert found == expected
    assert parse_device(str(found)) == found


@pytest.mark.spec("TG-26")
def test_the_object_of_a_device_is_the_database_or_itself() -> None:
    assert parse_device("tango://h:1/a/b/c").reference == Reference((Address("h", 1),), b"database")
    assert parse_device("tango://h:1/a/b/c#dbase=no").reference == Reference((Address("h", 1),), b"a/b/c")
    admin = parse_device("tango://h:1/a/b/c#dbase=no").sibling("dserver/X/y")
    assert admin.reference.key == b"dserver/x/y"


@each(
    "text",
    [
        "", "a", "a/b", "a//c", "a/b/c/d/e", "tango://h/a/b/c", "tango://h:0/a/b/c", "tango://:1/a/b/c", "a/b/c#x=1",
        "a/b/c#", "http://h:1/a/b/c", "a/b/€", "a/b/c\n/d",
    ],
)  # fmt: skip
def test_invalid_device_names_are_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_device(text, "db:10000")


def test_all_databases_of_a_tango_host_are_tried_in_order() -> None:
    pair = (Address("a", 1), Address("b", 2))
    assert ior.parse_tango_host("a:1, b:2") == pair
    settings = TangoRecorderSettings.of({"url": "tango://a:1,b:2", "devices": ["d/f/m"]})
    for named in (parse_device("d/f/m", "a:1,b:2"), parse_device(settings.full_name("d/f/m"))):
        assert named.reference.addresses == named.sibling("dserver/x/y").reference.addresses == pair
    with pytest.raises(BadAddress):
        ior.parse_tango_host("a:1,b")


def test_a_name_without_a_host_wants_a_tango_host() -> None:
    with pytest.raises(BadAddress, match="TANGO_HOST"):
        parse_device("a/b/c")
    for bad in ("", "h", "h:", "h:x", ":1", "h:70000"):
        with pytest.raises(BadAddress):
            ior.parse_tango_host(bad)
