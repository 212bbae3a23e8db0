"""Exactly once, in every order of steps: nothing is lost or stored twice, and each fault of the protocol is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.publishing.exactly_once_model import FAULTS, Id, ModelScope, Task, explore


def attempts(rows: str, n: int = 2) -> tuple[Task, ...]:
    """Attempts at one partition of one run."""
    return (Task("run 1", 0, rows),) * n


RUNS = (Task("run 1", 0, "x"), Task("run 2", 0, "x"))
X = Id(0, "x", 0)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(ModelScope(attempts("x"), freezes=1), id="a server stands still"),
        pytest.param(ModelScope(attempts("x"), slow=1), id="a message stays in its buffer"),
        pytest.param(ModelScope(RUNS, freezes=1), id="two runs"),
        pytest.param(
            ModelScope((Task("run 1", 0, "x"), Task("run 1", 1, "x")), earlier=(X,)), id="two partitions claim a row"
        ),
        *(
            pytest.param(scope, id=name, marks=pytest.mark.thorough)
            for name, scope in {
                "three rows": ModelScope(attempts("xxy"), freezes=1),
                "three attempts": ModelScope(attempts("x", 3), left=X),
                "a server stands still twice": ModelScope(attempts("x"), freezes=2),
                "a task gives up": ModelScope(attempts("x"), freezes=1, lost=1, gives_up=1),
                "a message stays, acknowledgements are lost": ModelScope(attempts("x"), slow=1, lost=1),
                "two attempts of a second run": ModelScope((*RUNS, RUNS[1])),
                "other partitions": ModelScope((Task("run 1", 0, "xx"), Task("run 2", 0, "x"), Task("run 2", 1, "x"))),
                "another run claims": ModelScope((*(Task("run 1", n, "x") for n in (0, 1)), RUNS[1]), earlier=(X,)),
            }.items()
        ),
    ],
)
def test_every_row_is_stored_once(scope: ModelScope) -> None:
    found = explore(scope)
    assert not found.wrong, "\n".join((found.wrong, *found.trace))
    assert found.done


#: Faults planted together; what goes wrong; where.
PLANTED: list[tuple[str, str, dict[str, Any]]] = [
    ("no fence", "doubled", {"freezes": 1}),
    ("no settling", "doubled", {}),
    ("settling by the clock", "doubled", {"freezes": 1}),
    ("ids are trusted", "doubled", {"freezes": 1}),
    ("named too late", "doubled", {"freezes": 1}),
    ("fenced before the take", "doubled", {"freezes": 1, "gives_up": 1}),
    ("names are dropped", "doubled", {"left": X}),
    ("opened without waiting", "doubled", {"tasks": RUNS}),
    ("opened without a fence", "doubled", {"tasks": RUNS, "freezes": 1}),
    ("lease outlives its owner", "doubled", {}),
    ("lease begins late", "doubled", {"tasks": RUNS}),
    ("renewed without a change, no fence", "doubled", {"lost": 1}),
    ("overwritten", "doubled", {"tasks": (*RUNS, RUNS[1])}),
    ("claim not read again", "lost", {"tasks": (RUNS[0], Task("run 1", 1, "x")), "earlier": (X,)}),
    ("released too early", "doubled", {"freezes": 1, "gives_up": 1}),
    ("sent after the end", "doubled", {"slow": 1}),
    ("sent after the lease", "doubled", {"slow": 1}),
    ("clock stands still", "doubled", {}),
    ("stands still before a send", "doubled", {}),
]


@pytest.mark.parametrize(("faults", "wrong", "scope"), PLANTED, ids=[faults for faults, *_ in PLANTED])
def test_each_fault_is_found(faults: str, wrong: str, scope: dict[str, Any]) -> None:
    scope = {"tasks": attempts("x"), **scope}
    assert explore(ModelScope(**scope, faults=frozenset(faults.split(", ")))).wrong == wrong


def test_faults_are_found_one_at_a_time() -> None:
    """What needs a second fault to show does not come from that one."""
    assert {fault for faults, *_ in PLANTED for fault in faults.split(", ")} == set(FAULTS)
    assert not explore(ModelScope(attempts("x"), lost=1, faults=frozenset({"no fence"}))).wrong
