"""``mama.properties`` as OpenMAMA reads it, and the options of a transport in it; topics of their parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.mama.messages.source_records import DEFAULT_FIELDS
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.properties import TRUE, Properties, TransportProperties, expand
from mama_spark.mama.topics import join_topic

from tests.support.tables import each

KNOWN = ["url", "servers", "maxInFlight", "waitTimeout", "token", "transport", "properties", "bridge", "storage.*"]


def value(text: str, **environ: str) -> str | None:
    return Properties.parse(f"k={text}", environ).get("k")


@each("line", ["a.b=c", "a.b:c", "a.b c", "a.b = c", "a.b\t:\tc", "  a.b  c", "a.b=c  ", "a.b =c\r", "a.\\b=\\c"])
def test_a_key_ends_at_a_blank_a_colon_or_an_equals_sign(line: str) -> None:
    assert dict(Properties.parse(line, {})) == {"a.b": "c"}


@each(
    ("text", "read"),
    [
        ("a b  c", "abc"),  # blanks inside a value are dropped
        ("=c", "=c"),  # at most one separator
        (":c", ":c"), ("tcp://*:5557", "tcp://*:5557"), (r"a\tb\nc\rd\\e", "a\tb\nc\rd\\e"), (r"a\ b", "a b"),
        (r"\#\=\q", "#=q"), ("a#b!c", "a#b!c"),
        ("a\\\n   b\\\r\n\tc", "abc"),  # continued, leading blanks of the next line dropped
        ("a\\\\\nb=c", "a\\"),  # an escaped backslash continues nothing
        ("a\\\n# no comment", "a#nocomment"), ("a\\", "a"),
        ("", None),  # an empty value reads as unset
        ("   ", None),
    ],
)  # fmt: skip
def test_a_value_is_read_as_openmama_reads_it(text: str, read: str | None) -> None:
    assert value(text) == read


@each(
    ("text", "read"),
    [
        ("$(HOME)/x", "/h/x"), ("${HOME}/x", "/h/x"), ("$(HOME)$(HOME)", "/h/h"), ("a$(NAME)b${HOME}c", "an nb/hc"),
        ("$(NONE)x", "$(NONE)x"), ("$(HOME", "$(HOME"), ("$HOME", "$HOME"), ("$()", "$()"),
    ],
)  # fmt: skip
def test_variables_come_from_the_environment_and_unset_ones_stay(text: str, read: str) -> None:
    assert value(text, HOME="/h", NAME="n n") == read


def test_the_last_of_two_equal_keys_wins_even_when_empty() -> None:
    assert Properties.parse("a=1\na=2", {}).get("a") == "2"
    assert Properties.parse("a=1\na=", {}).get("a") is None


@each("text", ["# a=1", "! a=1", "   # a=1", "", "\n\n", "=x", ":", "   "])
def test_comments_and_lines_without_a_key_are_ignored(text: str) -> None:
    assert len(Properties.parse(text, {})) == 0


@pytest.mark.spec("SD-49")
@each("text", [*sorted(TRUE), "false", "0", "no", "tRue", "on", "yEs", "2"])
def test_true_in_eleven_spellings_and_everything_else_is_false(text: str) -> None:
    assert len(TRUE) == 11
    read = Properties.parse(f"mama.x.transport.t.sourcediscovery.supported={text}", {})
    assert TransportProperties(read, "x", "t").discovery_supported is (text in TRUE)


@given(st.text())
def test_no_text_is_malformed(text: str) -> None:
    assert all(key and value for key, value in Properties.parse(text, {}).items())


def test_the_first_file_along_wombat_path_is_the_only_one(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "mama.properties").write_text("x=$(V)")
    (tmp_path / "c" / "mama.properties").write_text("x=c\ny=c")
    folders = ":".join(str(tmp_path / name) for name in ("a", "b", "c"))
    found = Properties.find(folders, {"V": "b"})
    assert dict(found) == {"x": "b"}
    assert found.path == str(tmp_path / "b" / "mama.properties")
    assert found.where("x") == f"{found.path}:1"


def test_the_error_for_a_missing_file_names_the_searched_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no mama.properties in the folders of WOMBAT_PATH: {tmp_path}, /nowhere"):
        Properties.find(f"{tmp_path}::/nowhere")
    for unset in (None, "", ":"):
        with pytest.raises(ConfigError, match="WOMBAT_PATH is not set"):
            Properties.find(unset)
    with pytest.raises(ConfigError, match=r"nothing\.properties: No such file"):
        Properties.load(tmp_path / "nothing.properties")
    (tmp_path / "latin").write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"latin: .*utf-8"):
        Properties.load(tmp_path / "latin")


# --- transports ----------------------------------------------------------------------------------------------

FILE = """
mama.nats.transport.desk.url = nats://10.0.0.1:4222
mama.nats.transport.desk.maxInFlight=512
mama.nats.transport.desk.WAITTIMEOUT=7s
mama.nats.transport.desk.outgoing_url=tcp://*:5557
mama.nats.transport.desk.storage.aws_region=eu
mama.nats.transport.desk.sourcediscovery.supported=true
mama.transport.desk.maxInFlight=1
mama.transport.desk.token=s3cret
mama.nats.transport.plain.url=nats://10.0.0.2:4222
mama.sourcediscovery.source.fid=20001
mama.memory.transport.m.url=memory://x
mama.transport.m.sourcediscovery.supported=yes
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mama.properties").write_text(FILE)
    return str(tmp_path / "mama.properties")


def test_an_option_goes_before_the_file_one_of_the_bridge_before_one_of_all_bridges_whatever_their_case(
    file: str,
) -> None:
    made = expand({"TRANSPORT": "desk", "Properties": file, "Servers": "nats://x"}, KNOWN, {})
    assert (made.options["maxInFlight"], made.options["token"]) == ("512", "s3cret")
    assert "url" not in made.options
    assert made.options["Servers"] == "nats://x"


def test_without_a_path_wombat_path_is_searched(file: str) -> None:
    found = {"WOMBAT_PATH": str(Path(file).parent)}
    made = expand({"transport": "plain"}, KNOWN, found)
    assert (made.options["url"], made.discovery_supported) == ("nats://10.0.0.2:4222", False)
    other = expand({"transport": "m", "bridge": "Memory"}, KNOWN, found)
    assert (other.options["url"], other.discovery_supported) == ("memory://x", True), "one of another bridge"
    with pytest.raises(ConfigError, match="WOMBAT_PATH is not set; give its path as option properties"):
        expand({"transport": "plain"}, KNOWN, {})


def test_without_a_transport_nothing_is_read_and_the_bridge_decides(file: str) -> None:
    made = expand({"url": "nats://x"}, KNOWN, {"WOMBAT_PATH": str(Path(file).parent)})
    assert made.options == {"url": "nats://x"}
    assert (made.discovery_supported, made.supported_key, made.fields) == (None, "", DEFAULT_FIELDS)


@pytest.mark.spec("SD-13")
def test_a_file_without_a_transport_still_names_the_fields(file: str) -> None:
    made = expand({"properties": file}, KNOWN, {})
    assert made.options == {"properties": file}
    assert made.discovery_supported is None
    assert made.fields.source.fid == 20001


def test_a_transport_that_is_not_in_the_file_is_an_error_with_the_nearest_one(file: str) -> None:
    with pytest.raises(
        OptionError, match=r"no key that begins with mama\.nats\.transport\.dekk\.; did you mean 'desk'"
    ):
        expand({"transport": "dekk", "properties": file}, KNOWN, {})
    with pytest.raises(OptionError, match="must not be empty"):
        expand({"transport": " ", "properties": file}, KNOWN, {})


def test_wrong_fields_are_an_error_with_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("\nmama.sourcediscovery.source.fid=x1\n")
    with pytest.raises(ConfigError, match=r"/p:2: mama.sourcediscovery.source.fid must be from 1 to 65535, got 'x1'"):
        expand({"properties": str(path)}, KNOWN, {})


# --- Topics made from root, source and symbol -------------------------------------------------------------------------


@pytest.mark.spec("PE-22-PE-24")
@each(
    ("parts", "topic"),
    [
        ((None, None, None), ""), ((None, None, "SYM"), "SYM"), ((None, "SRC", None), "SRC"),
        ((None, "SRC", "SYM"), "SRC.SYM"), (("_MD", "SRC", "SYM"), "_MD.SRC.SYM"),
        (("_MDDD", "", "SYM.B"), "_MDDD.SYM.B"), (("", "", ""), ""),
    ],
)  # fmt: skip
def test_our_bridges_join_all_parts_and_skip_missing_ones(parts: tuple[str | None, ...], topic: str) -> None:
    assert join_topic(*parts) == topic


@pytest.mark.spec("PE-22-PE-24")
@each(("place", "most"), [(0, 5), (1, 64), (2, 128)])
def test_the_length_of_parts_is_limited_in_bytes(place: int, most: int) -> None:
    for char in ("a", "é", "€", "\U0001f600"):
        size = len(char.encode())
        parts = [None, None, None]
        parts[place] = char * (most // size)  # type: ignore[call-overload]
        assert join_topic(*parts)
        parts[place] = char * (most // size + 1)  # type: ignore[call-overload]
        with pytest.raises(StatusError, match=f"longer than {most} bytes") as e:
            join_topic(*parts)
        assert e.value.status is Status.BAD_SYMBOL


def test_a_topic_holds_no_nul() -> None:
    with pytest.raises(StatusError, match="NUL") as e:
        join_topic(None, "a", "b\0")
    assert e.value.status is Status.BAD_SYMBOL
