"""Keys and JWTs of a decentralised NATS: an operator, an account, and users whose credentials expire."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import nkeys
import orjson


class Key:
    """A new pair of keys.

    :param prefix: ``nkeys.PREFIX_BYTE_...``
    """

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix)).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public = bytes(self._pair.public_key).decode()

    def sign(self, subject: str, name: str, claims: dict[str, Any], expires: float | None = None) -> str:
        """A JWT about ``subject``."""
        body = {"iat": int(time.time()), "iss": self.public, "sub": subject, "name": name, "nats": claims}
        body |= {} if expires is None else {"exp": int(expires)}
        body["jti"] = base64.b32encode(hashlib.sha256(orjson.dumps(body)).digest()).decode().rstrip("=")
        text = b".".join(map(_encoded, (orjson.dumps({"typ": "JWT", "alg": "ed25519-nkey"}), orjson.dumps(body))))
        return b".".join((text, _encoded(self._pair.sign(text)))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Operator:
    """An operator with one account.

    :ivar config: of a server that trusts it
    """

    def __init__(self) -> None:
        operator, self._account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        account = operator.sign(
            self._account.public, "A", {"type": "account", "version": 2, "limits": {**unlimited, "wildcards": True}}
        )
        own = operator.sign(operator.public, "O", {"type": "operator", "version": 2})
        self.config = f'operator: {own}\nresolver: MEMORY\nresolver_preload: {{ {self._account.public}: "{account}" }}'

    def credentials(self, path: Path, expires: float | None = None) -> Path:
        """A file of a new user's credentials, in place of the one before at once."""
        user = Key(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        jwt = self._account.sign(user.public, "U", claims, expires)
        text = f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        text += f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        new = path.with_suffix(".new")
        new.write_text(text)
        return new.replace(path)
