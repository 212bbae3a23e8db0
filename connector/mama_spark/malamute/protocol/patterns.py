"""Matching of subjects: unanchored search with a regular expression, in time linear in the subject. Pure.

The syntax is RE2's on bytes (Latin-1), so no pattern can stall an engine. A pattern that RE2 refuses, whose program is
too large, or that repeats a group that may be empty is a :class:`BadPattern`. Where the reference broker's own matcher
and Python's ``re.search`` agree, the result is the same here. The differences:

| pattern | here | reference |
|---|---|---|
| empty, ``.*``, ``()`` on an empty subject | match | no match |
| ``$`` alone | matches every subject | none |
| ``[a-c]``, ``[\\d]`` | range, class | a, - and c; nothing |
| ``a.?b`` on ``ab`` | match | no match |
| ``\\w``, ``\\W`` | ASCII, with underscore | without |
| ``\\a``, ``\\A`` | BEL, start of the subject | alphabetic, not alphabetic |
| ``\\xHH``, ``{m,n}``, ``\\b``, ``(?i)``, ``(?:)`` | as in Perl | literals |
| ``(?=``, ``(?!``, ``\\1``, ``\\Z`` | refused | not known |
| ``^a|b`` | anchors the first branch | all branches |
| ``a\\`` | the escaped end of the text, which is in no subject | the same |
| ``x$`` before a final newline | no match | no match (Python: match) |
| ``[``, ``(`` | refused | match everything |
| ``)``, ``a)``, ``*``, ``+``, ``a**``, ``(a*)*`` | refused | endless loop |
"""

from __future__ import annotations

from collections.abc import Iterator

import re2

from mama_spark.contracts.errors import MamaError

#: Instructions of one pattern's program: the bound on the work for one byte of a subject. A pattern of 255 plain
#: bytes, the longest that fits in a frame, has about 260; the reference takes 256 bytes of program.
MAX_PROGRAM = 500
#: Patterns matched in one pass, and recompiled at a change (under a millisecond).
CHUNK = 256
_PATTERN_MEMORY = 256 * 1024
_CHUNK_MEMORY = 8 * 1024 * 1024


class BadPattern(MamaError):
    """A refused pattern; the text is the reason."""


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes: subjects that are not UTF-8 must match too
    options.never_capture = True
    options.log_errors = False
    options.max_mem = memory
    return options


class Pattern:
    """A compiled pattern.

    :raises BadPattern: it is refused
    """

    __slots__ = ("text", "_compiled")

    def __init__(self, text: bytes) -> None:
        self.text = text
        text = _with_closed_escape(text)
        self._compiled = _compile(text)
        if self._compiled.programsize > MAX_PROGRAM:
            raise BadPattern("pattern is too large")
        for body in _repeated_groups(text):
            if _compile(body).fullmatch(b""):
                raise BadPattern("pattern repeats a group that may be empty")

    def search(self, subject: bytes) -> bool:
        return self._compiled.search(subject) is not None


def _with_closed_escape(text: bytes) -> bytes:
    """The pattern, whose last backslash may escape nothing: as in the reference that is NUL, which no subject has."""
    backslashes = len(text) - len(text.rstrip(b"\\"))
    return text + b"x00" if backslashes % 2 else text


def _compile(text: bytes) -> re2._Regexp:
    try:
        return re2.compile(text, _options(_PATTERN_MEMORY))
    except re2.error as e:
        reason = e.args[0] if e.args else b""
        raise BadPattern(f"not a pattern: {reason.decode('latin-1')}") from None


def _repeated_groups(text: bytes) -> Iterator[bytes]:
    """Groups of a valid pattern that are followed by ``*``, ``+`` or ``{``, with their parentheses."""
    opened: list[int] = []
    at, size = 0, len(text)
    while at < size:
        byte = text[at : at + 1]
        if byte == b"\\":
            if text[at : at + 2] == b"\\Q":
                end = text.find(b"\\E", at + 2)
                at = size if end < 0 else end
            at += 2
            continue
        if byte == b"[":
            at = _end_of_class(text, at)
            continue
        if byte == b"(":
            opened.append(at)
        elif byte == b")" and opened:
            start = opened.pop()
            if text[at + 1 : at + 2] in (b"*", b"+", b"{"):
                yield text[start : at + 1]
        at += 1


def _end_of_class(text: bytes, at: int) -> int:
    """Offset after the class that begins at ``at``; a ``]`` immediately after the bracket belongs to it."""
    at += 2 if text[at + 1 : at + 2] == b"^" else 1
    first = at
    while at < len(text):
        if text[at : at + 1] == b"\\":
            at += 2
        elif text[at : at + 2] == b"[:":
            end = text.find(b":]", at)
            at = at + 1 if end < 0 else end + 2
        elif text[at : at + 1] == b"]" and at > first:
            return at + 1
        else:
            at += 1
    return at


class Matcher:
    """Finds which patterns match a subject, :data:`CHUNK` in one pass: ten thousand cost tens of microseconds."""

    def __init__(self) -> None:
        self._chunk_by_text: dict[bytes, _Chunk] = {}
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return len(self._chunk_by_text)

    def __contains__(self, text: bytes) -> bool:
        return text in self._chunk_by_text

    def add(self, text: bytes) -> None:
        """Idempotent.

        :raises BadPattern: it is refused; nothing has changed
        """
        if text in self._chunk_by_text:
            return
        pattern = Pattern(text)
        chunk = next((c for c in reversed(self._chunks) if len(c.patterns) < CHUNK), None)
        if chunk is None:
            chunk = _Chunk()
            self._chunks.append(chunk)
        chunk.change(add=pattern)
        self._chunk_by_text[text] = chunk

    def discard(self, text: bytes) -> None:
        """Idempotent."""
        chunk = self._chunk_by_text.pop(text, None)
        if chunk is not None:
            chunk.change(remove=text)
            if not chunk.patterns:
                self._chunks.remove(chunk)

    def match(self, subject: bytes) -> list[bytes]:
        return [text for chunk in self._chunks for text in chunk.match(subject)]


class _Chunk:
    """Up to :data:`CHUNK` patterns; compiled together at the first subject after a change."""

    __slots__ = ("patterns", "_texts", "_set", "_stale")

    def __init__(self) -> None:
        self.patterns: dict[bytes, Pattern] = {}
        self._texts: list[bytes] = []
        self._set: re2.Set | None = None
        self._stale = True

    def change(self, add: Pattern | None = None, remove: bytes | None = None) -> None:
        if add is not None:
            self.patterns[add.text] = add
        if remove is not None:
            del self.patterns[remove]
        self._stale = True

    def match(self, subject: bytes) -> list[bytes]:
        if self._stale:
            self._build()
        if self._set is not None:
            found = self._set.Match(subject)
            if found and 0 in found:
                return [self._texts[i] for i in found if i]
        return [text for text, pattern in self.patterns.items() if pattern.search(subject)]

    def _build(self) -> None:
        """The first pattern of the set matches everything: if its index is missing, RE2 silently ran out of memory."""
        self._stale = False
        self._texts = [b"", *self.patterns]
        together = re2.Set.SearchSet(_options(_CHUNK_MEMORY))
        try:
            for text in self._texts:
                together.Add(_with_closed_escape(text))
            together.Compile()
        except re2.error:  # too large as a set: matched one by one
            self._set = None
        else:
            self._set = together
