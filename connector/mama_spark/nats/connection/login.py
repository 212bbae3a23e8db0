"""Logins at a server, read anew for each connection, so that renewed files count at the next one."""

from __future__ import annotations

import base64
import os
import re

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import is_content, show_path

from ..protocol.server_pool import Server
from ..settings import NatsSettings

_PART = re.compile(r"-{3,}BEGIN ([A-Z ]+?)-{3,}\s+([\w.=-]+)\s+-{3,}END")


def require_file(option: str, path: str) -> str:
    """The path. ConfigError: there is no such file, or ``path`` is the content of one."""
    if is_content(path):
        raise ConfigError(f"{option} must be the path of a file, and is the content of one")
    if not os.path.isfile(path):
        raise ConfigError(f"{option}: there is no such file {show_path(path)}")
    return path


def login_fields(settings: NatsSettings, server: Server, nonce: str) -> dict[str, str]:
    """The login fields of CONNECT: a login of the options, or one that all URLs share; otherwise that of the server's
    own URL. ConfigError: a file is missing, or holds no login."""
    s = settings
    if s.credentials is not None:
        parts = dict(_PART.findall(_read("credentials", s.credentials)))
        if not {"NATS USER JWT", "USER NKEY SEED"} <= parts.keys():
            raise ConfigError("credentials: the file has no user JWT, or no seed")
        return {"jwt": parts["NATS USER JWT"], "sig": _sign("credentials", parts["USER NKEY SEED"], nonce)[1]}
    if s.nkey_seed is not None:
        nkey, signature = _sign("nkeySeed", _read("nkeySeed", s.nkey_seed).strip(), nonce)
        return {"nkey": nkey, "sig": signature}
    if s.user is not None or s.token is not None:
        given = {} if s.token is None else {"auth_token": s.token}
        return given if s.user is None else given | {"user": s.user, "pass": s.password or ""}
    login = s.login_of_urls or server.login
    if login is None:
        return {}
    user, password = login
    return {"auth_token": user} if password is None else {"user": user, "pass": password}


def refusal(text: str) -> str:
    """The server's text, with the remedy if it refuses the credentials."""
    if not any(word in text.lower() for word in ("authorization violation", "authentication")):
        return text
    ways = "options user and password, token, nkeySeed, credentials"
    return f"the server refuses the credentials: {text}; correct what logs in ({ways}, or the url)"


def _read(option: str, path: str) -> str:
    try:
        with open(require_file(option, path), encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{option}: {show_path(path)} cannot be read: {type(e).__name__}") from None


def _sign(option: str, seed: str, nonce: str) -> tuple[str, str]:
    """The public key of a seed, and the signature of the server's nonce."""
    import nkeys  # only for these logins: it loads a library in C

    if not nonce:
        raise ConfigError(f"{option}: this server asks for no signature: it is not configured for keys")
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        return bytes(pair.public_key).decode(), signature
    except (nkeys.NkeysError, ValueError) as e:
        raise ConfigError(f"{option}: not the seed of a key: {type(e).__name__}") from None
