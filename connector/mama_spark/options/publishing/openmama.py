"""Options of ``mamapub``: readers and fields of OpenMAMA. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..scopes import OPENMAMA
from ..values import boolean, duration_or_none, file_path, mama_fields

_GROUP = "Messages"


@dataclass(frozen=True, repr=False)
class OpenMamaOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    wait_for_subscribers: float = option(
        "duration", duration_or_none, 5.0, _GROUP,
        "A task waits so long for readers of its topics before its first messages: what is sent earlier reaches "
        "nobody. `0` = not at all.", shown="5s", scope=OPENMAMA,
    )  # fmt: skip
    require_subscribers: bool = option(
        "boolean", boolean, False, _GROUP,
        "Rows of topics that nobody reads then: fail with `NO_SUBSCRIBERS` (`true`), or are `published`, with "
        "`ack_level` = `none`.", scope=OPENMAMA,
    )  # fmt: skip
    mama_fields: tuple[tuple[str, int | None, str | None], ...] = option(
        "fields", mama_fields, (), _GROUP,
        "Numbers and types of fields: `name[:fid[:type]]`, separated by commas, as `wBidPrice:109:PRICE(2), "
        "wText::STRING`. Each other column is a field of its name, without a number and of the type of the column.",
        shown="", scope=OPENMAMA,
    )  # fmt: skip
    mama_dictionary: str | None = option(
        "path", file_path, None, _GROUP,
        "Data dictionary, lines `fid|name|type`, readable on driver and executors: numbers and types of the fields "
        "that `mamaFields` does not name.", scope=OPENMAMA,
    )  # fmt: skip
    mama_numbers: bool = option(
        "boolean", boolean, False, _GROUP,
        "Number the messages of each topic (`MdSeqNum`, and a `MamaSenderId` of the task), so that readers notice "
        "gaps. Readers take one numbering a topic: the DataFrame must have one partition (`coalesce(1)`); of several, "
        "the first one is published, and the write fails.", scope=OPENMAMA,
    )  # fmt: skip
