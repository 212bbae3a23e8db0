"""The conservation oracle: checks that no row was lost, invented, or reported with two outcomes (invariant 4).

It knows nothing of the bridge: it compares the outcomes that a publisher reports with the messages of the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """Counts of a comparison, and contradictions; empty ``faults``: conserved.

    :ivar duplicates: messages that the broker holds more often than they were sent
    :ivar landed_anyway: rows not reported as acked whose payload the broker holds nevertheless
    """

    rows: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    duplicates: int = 0
    landed_anyway: int = 0
    faults: list[str] = field(default_factory=list)

    def raise_faults(self) -> Verdict:
        """This verdict, if it has no faults.

        :raises AssertionError: it has some
        """
        if self.faults:
            raise AssertionError("not conserved: " + "; ".join(self.faults[:5]))
        return self


@dataclass(frozen=True)
class Outcome:
    """The terminal event of one row.

    :ivar event: ``acked``, ``completed_exceptionally`` or ``timeout``
    :ivar may_have_landed: the publisher reports that it does not know
    """

    topic: str
    payload: bytes
    event: str
    may_have_landed: bool = False
    sequence: int = -1


def conserve(
    outcomes: Iterable[Outcome], stored: Iterable[tuple[int, str, bytes]], *, sent: int, exactly_once: bool = True
) -> Verdict:
    """Compare; payloads must be distinct for the counts to mean something.

    :param stored: sequence, topic, payload of everything the broker holds
    :param sent: number of rows that were handed to the publisher
    :param exactly_once: the broker deduplicates, so that nothing may be there twice
    """
    verdict = Verdict()
    held: Counter[tuple[str, bytes]] = Counter()
    by_sequence: dict[int, tuple[str, bytes]] = {}
    for sequence, topic, payload in stored:
        held[topic, payload] += 1
        by_sequence[sequence] = (topic, payload)
    expected: Counter[tuple[str, bytes]] = Counter()
    for o in outcomes:
        verdict.rows += 1
        key = (o.topic, o.payload)
        expected[key] += 1
        if o.event == "acked":
            verdict.acked += 1
            if not held[key]:
                verdict.faults.append(f"acked, but not at the broker: {o.topic} {o.payload[:40]!r}")
            elif o.sequence >= 0 and by_sequence.get(o.sequence) != key:
                verdict.faults.append(f"sequence {o.sequence} holds another message than {o.payload[:40]!r}")
            continue
        verdict.timed_out += o.event == "timeout"
        verdict.failed += o.event == "completed_exceptionally"
        if held[key]:
            verdict.landed_anyway += 1
            if not o.may_have_landed:
                verdict.faults.append(f"said not to be stored, and is: {o.topic} {o.payload[:40]!r}")
    if verdict.rows != sent:
        verdict.faults.append(f"{sent} rows went in, {verdict.rows} outcomes came out")
    for key, n in held.items():
        if not expected[key]:
            verdict.faults.append(f"at the broker, but never sent: {key[0]} {key[1][:40]!r}")
        verdict.duplicates += max(0, n - expected[key])
    if exactly_once and verdict.duplicates:
        verdict.faults.append(f"{verdict.duplicates} messages are stored more than once")
    return verdict
