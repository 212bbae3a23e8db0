"""Limits of messages that more than one middleware keeps. Pure."""

from __future__ import annotations

#: Headers of one message. A frame of the largest size could have a thousand times as many.
MAX_HEADERS = 65_536
#: Why those of a message are left out.
TOO_MANY_HEADERS = f"it has more than {MAX_HEADERS:,} headers, which are not read"
