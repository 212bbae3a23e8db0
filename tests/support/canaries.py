"""Secrets that are all different, one for every option that can hold one, and a search for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import nkeys
import pyarrow.parquet as pq

#: What no text may show, by what it is the secret of.
WORDS = {
    "url": "canary/Url?1", "user": "canary-user-2", "password": "canary-password-3", "token": "canary-token-4",
    "storage key id": "CANARYID5", "storage secret": "canary+storage/6", "storage session": "canary-session-7",
    "PLAIN password of Malamute": "canary-plain-8",
}  # fmt: skip
SEED = bytes(nkeys.encode_seed(b"canary-nkey-seed-of-32-bytes-99!", nkeys.PREFIX_BYTE_USER)).decode()
CREDENTIALS_SEED = bytes(nkeys.encode_seed(b"canary-seed-in-credentials-10!!!", nkeys.PREFIX_BYTE_USER)).decode()
_CLAIMS = base64.urlsafe_b64encode(b'{"name": "canary-jwt-11", "nats": {"type": "user"}}').decode().rstrip("=")
JWT = f"eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.{_CLAIMS}.{'canaryJwt12' * 8}"
CREDENTIALS = (
    f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------\n\n"
    f"-----BEGIN USER NKEY SEED-----\n{CREDENTIALS_SEED}\n------END USER NKEY SEED------\n"
)
_KEY = base64.b64encode(b"canary-private-key-13" * 3).decode()
PRIVATE_KEY = f"-----BEGIN PRIVATE KEY-----\n{_KEY}\n-----END PRIVATE KEY-----\n"
CURVE_SECRET = "canary-curve-secret-14".ljust(40, "x")
#: A password as it stands in a URL.
ENCODED = quote(WORDS["url"], safe="")

STORAGE = {
    "storage.aws_access_key_id": WORDS["storage key id"],
    "storage.aws_secret_access_key": WORDS["storage secret"],
    "storage.aws_session_token": WORDS["storage session"],
}
_SECRETS = {
    **WORDS,
    "url, encoded": ENCODED,
    "url, its beginning": "canary/U",
    "url, its end": "rl?1",
    "seed": SEED,
    "seed of the credentials": CREDENTIALS_SEED,
    "claims": _CLAIMS,
    "signature": "canaryJwt12",
    "private key": _KEY,
    "CURVE key": CURVE_SECRET,
}


def shown_in(text: str) -> list[str]:
    """Whose secrets a text shows, the escaped ones of JSON too."""
    return [name for name, secret in _SECRETS.items() if secret in text or secret.replace("/", "\\/") in text]


def shown_below(folders: Iterable[Path]) -> list[str]:
    """Which files show which secrets: by their bytes, Parquet files also by their values."""
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                text = path.read_bytes().decode("utf-8", "replace")
                if path.suffix == ".parquet":
                    text += str(pq.ParquetFile(path).read().to_pylist())
                found += [f"{path.relative_to(folder)}: {name}" for name in shown_in(text)]
    return found
