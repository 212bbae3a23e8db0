"""Defaults for all queries of a session: ``spark.mama.<option>`` in Spark's configuration. Pure.

:func:`mama_spark.register` takes them from its session; the formats get them among their options, with the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..contracts.errors import OptionError
from ..contracts.redaction import redact, redact_url
from ..options import FORMATS, option_names
from ..options.declare import STORAGE
from ..options.nats_environment import PLACES, completed, has_other_place
from ..options.values import nearest

PREFIX = "spark.mama."


def session_defaults(conf: Mapping[str, str]) -> dict[str, str]:
    """The defaults in the configuration of a session, with their prefix.

    :raises OptionError: no format has such an option, or Spark would show a secret in its UI
    """
    known = {name.lower(): name for options in FORMATS.values() for name in option_names(options)}
    found = {key: value for key, value in conf.items() if key.startswith(PREFIX)}
    for key, value in found.items():
        name = key.removeprefix(PREFIX)
        if name.lower().startswith(STORAGE):
            raise OptionError(f"{key}: Spark shows some of these in its UI; give {STORAGE}* as options of the query")
        if name.lower() not in known:
            raise OptionError(f"{key}: no format has the option {name!r}{nearest(name, known.values())}")
        if (redact_url if name.lower() in PLACES else redact)(value) != value:
            raise OptionError(
                f"{key} holds a secret, which Spark shows in its UI: give a login as {PREFIX}user and {PREFIX}password "
                f"or as the path of a file, and that of a table as {STORAGE}* of the query"
            )
    return found


def with_session_defaults(given: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """The options of a query, completed by the defaults among ``given``, and the names of these, in lower case.
    Defaults are left out where they have no effect, or connect to another place than the query."""
    own = {name: value for name, value in given.items() if not name.lower().startswith(PREFIX)}
    defaults = {name.lower().removeprefix(PREFIX): value for name, value in given.items() if name not in own}
    found = completed(own, {} if has_other_place(own, defaults) else defaults)
    return found, frozenset(found.keys() - own.keys())
