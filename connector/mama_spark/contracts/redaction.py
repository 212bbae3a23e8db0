"""Makes text fit to show: without the logins of URLs, seeds, tokens and private keys. Pure.

:func:`redact` does that to any text; every :class:`~mama_spark.contracts.errors.MamaError` applies it to its own.
:func:`redact_url` is for a URL, :func:`show_path` for what should be the path of a file and may be the content of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from .middlewares import SCHEMES

MASK = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Host; then nothing, a port, or a path: all else is masked.
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:/?#\[\]]*)(?:(?::\d*)?(?:[/?#].*)?(\Z)|.*)", re.DOTALL)
#: In URLs of Azure the container stands before the @.
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://[A-Za-z0-9$-]+@", re.IGNORECASE)

_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*@[^\s'\"<>]*")
_PUNCTUATION = ".,;:!?)}"
#: A file of NATS credentials, a private key, or what is left of either.
_FILE = re.compile(r"-----BEGIN [A-Z0-9 ]+-----(?:.*-----END [A-Z0-9 ]+-----+|.*)", re.DOTALL)
_LINE_END = re.compile(r"\s*[\r\n]\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SEED = r"S[UAOCNXP][A-Z2-7]{56}"
_JWT = r"eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
_TOKEN = re.compile(rf"(?<![\w-])(?:{_SEED}|{_JWT})(?![\w-])")
_LONGEST_WORD = 40
_FILE_NAME = re.compile(r"[^\s/\\]+\.\w{1,6}")
_SECRET_KEY = re.compile(r"key|secret|token|password|signature|sas|credential|account", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with ``***`` in place of every secret that it shows; one without any as it is.

    :param secrets: values that are known to be secret
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    if "://" in text and "@" in text:
        text = _URL_IN_TEXT.sub(lambda found: _redact_in_text(found[0]), text)
    if "-----BEGIN " in text:
        text = _FILE.sub(MASK, text)
    return _TOKEN.sub(MASK, text) if len(text) > _LONGEST_WORD else text


def one_line(text: str) -> str:
    """The text without ends of lines and colours."""
    return text if text.isprintable() else _LINE_END.sub(" ", _COLOUR.sub("", text)).strip()


def redact_url(text: str, mask: str = f"{MASK}@") -> str:
    """A URL, or several separated by commas, with ``mask`` in place of the login (user, password or token).

    Works on the text and not on the parsed URL: a password with ``/``, ``?`` or ``#`` makes the parser end the host
    there and take the password for port and path. The login is all that stands between ``://`` (or the start) and the
    last ``@``. A port that is no number is masked with all that follows: it may be part of a password that was cut at a
    comma.
    """
    next_url = rf",(?=\s*(?i:{'|'.join(map(re.escape, SCHEMES))})://)"  # other commas may stand in a password
    return ",".join(_redact_one(url.strip(), mask) for url in re.split(next_url, text))


def show_path(value: str) -> str:
    """The value of an option that is a path, quoted; ``***`` if it looks like the content of a file instead."""
    words = re.split(r"[/\\]", value)
    is_path = value.isprintable() and (len(words) > 1 or _FILE_NAME.fullmatch(value))
    is_path = is_path and all(len(word) <= _LONGEST_WORD for word in re.split(r"[^\w+=-]", value))
    return repr(value) if is_path and redact(value) == value else MASK


def is_content(value: str) -> bool:
    """Whether this, given as the path of a file, is without doubt the content of one: a key, a seed, credentials."""
    return "-----BEGIN " in value or "\n" in value.strip() or _TOKEN.search(value) is not None


def secret_values(options: Mapping[str, str]) -> list[str]:
    """The secrets among the options of an object store, the longest first; each as it is and percent-decoded."""
    found = {value for key, value in options.items() if _SECRET_KEY.search(key)}
    return sorted((text for value in found for text in {value, unquote(value)} if text.strip()), key=len, reverse=True)


def safe_cause(error: BaseException, secrets: Iterable[str] = ()) -> BaseException | None:
    """The error as the cause of another one, whose text is printed, too; None if the text shows a secret."""
    return error if redact(text := str(error), secrets) == text else None


def _redact_one(url: str, mask: str) -> str:
    if (container := _CONTAINER.match(url)) is not None and "@" not in url[container.end() :]:
        return url
    match = _SCHEME.match(url)
    scheme = match[0] if match else ""
    _, at, address = url.removeprefix(scheme).rpartition("@")
    host, whole = match.groups() if (match := _ADDRESS.fullmatch(address)) else ("", None)
    if whole is None:
        address = f"{host}:{MASK}"
    return f"{scheme}{mask if at else ''}{address}"


def _redact_in_text(url: str) -> str:
    """The match may end with punctuation of the sentence."""
    bare = url.rstrip(_PUNCTUATION)
    return redact_url(bare) + url[len(bare) :] if "@" in bare else url
