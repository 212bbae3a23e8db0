"""Every seeded fault can still be planted: its text stands in the product once, and its tests exist."""

from __future__ import annotations

from tests.seeded_faults.run import ROOT, read_faults


def test_every_seeded_fault_fits_the_code() -> None:
    assert {fault.name: why for fault in read_faults() if (why := fault.inapplicable(ROOT))} == {}
