"""An encapsulation is read up to its end, whatever octets follow."""

from __future__ import annotations

import pytest
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter


@pytest.mark.parametrize("little", [True, False])
def test_nothing_is_read_behind_the_end_of_an_encapsulation(little: bool) -> None:
    inner = CdrWriter.inner(little)
    inner.ulong(7)
    writer = CdrWriter(little)
    writer.encapsulation(inner)
    for _ in range(8):
        writer.ulong(99)
    for read in (
        CdrReader.octet,
        CdrReader.ulong,
        CdrReader.double,
        CdrReader.string,
        CdrReader.octets,
        lambda r: r.raw(1),
    ):
        reader = CdrReader(writer.getvalue(), little).encapsulation()
        assert reader.ulong() == 7
        reader.finish()
        with pytest.raises(CdrError):
            read(reader)
