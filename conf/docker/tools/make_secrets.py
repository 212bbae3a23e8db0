"""Makes keys and certificates for the compose file, or for Kubernetes, in a folder: ``python -m make_secrets FOLDER``.

Nothing that is there is replaced. Private files are readable by user 185 only, who runs in the containers; the folder
by who has made it, so that files of other users in it are not open to all of the host.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import nkeys
import zmq

USER = 185
#: Names of the servers in the compose file, and those of the NATS chart in the namespace `mama`.
SERVERS = (
    "nats-1",
    "nats-2",
    "nats-3",
    "nats",
    "nats.mama",
    "nats.mama.svc",
    "*.nats-headless",
    "*.nats-headless.mama.svc",
)
#: What a job needs that publishes (docs/reference/permissions.md), and a recorder, which also reads its log.
PUBLISHER = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*")
READER = tuple(
    f"$JS.API.{request}.>"
    for request in (
        *("CONSUMER.CREATE", "CONSUMER.MSG.NEXT", "CONSUMER.INFO", "CONSUMER.DELETE"),
        *("DIRECT.GET", "STREAM.MSG.GET"),
    )
)
#: Subjects that each user may publish to; the first one has no limits: it makes streams.
USERS = {
    "admin": (),
    "spark": ("flights.>", "orders.>", *PUBLISHER),
    "recorder": ("mama.>", "tango.>", *PUBLISHER, *READER),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.umask(0o077)
    folder.chmod(0o700)
    write(folder / "users.conf", nats_users({name: nkey(folder / f"{name}.nk") for name in USERS}))
    certificates(folder)
    curve_keys(folder)
    write(folder / "grafana_password", secrets.token_urlsafe(24))
    for path in folder.iterdir():
        if os.geteuid() == 0:
            os.chown(path, USER, USER)
        path.chmod(0o444 if path.suffix in (".crt", ".conf", ".public") or path.name == "grafana_password" else 0o400)


def write(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text)


def nkey(path: Path) -> str:
    """Make the seed of a user; its public key."""
    write(path, nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode())
    return nkeys.from_seed(bytearray(path.read_bytes())).public_key.decode()


def nats_users(keys: dict[str, str]) -> str:
    lines = []
    for name, key in keys.items():
        subjects = ", ".join(f'"{subject}"' for subject in USERS[name])
        limits = f', permissions: {{ publish: [ {subjects} ], subscribe: [ "_INBOX.>" ] }}' if subjects else ""
        lines.append(f"  {{ nkey: {key}{limits} }}  # {name}\n")
    return f"users: [\n{''.join(lines)}]\n"


def certificates(folder: Path) -> None:
    """A CA, and one certificate for the three servers, which are clients of each other, too."""
    if (folder / "nats.crt").exists():
        return
    ca, key, request, names = folder / "ca.key", folder / "nats.key", folder / "nats.csr", folder / "nats.ext"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = "keyUsage=critical,keyCertSign,cRLSign"  # without it Python 3.13 trusts none
    authority = ("-days", "3650", "-subj", "/CN=mama CA", "-addext", usage)
    openssl("req", "-x509", *curve, "-keyout", ca, "-out", folder / "ca.crt", *authority)
    openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=nats")
    alternatives = ",".join([*(f"DNS:{name}" for name in SERVERS)])
    names.write_text(
        f"subjectAltName={alternatives}\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    signer = ["-CA", folder / "ca.crt", "-CAkey", ca, "-CAcreateserial", "-days", "825", "-extfile", names]
    openssl("x509", "-req", "-in", request, *signer, "-out", folder / "nats.crt")
    for path in (request, names, folder / "ca.srl"):
        path.unlink()


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def curve_keys(folder: Path) -> None:
    """Of the Malamute broker; its clients need the public one."""
    public, secret = zmq.curve_keypair()
    if not (folder / "broker.key").exists():
        write(folder / "broker.key", secret.decode())
        write(folder / "broker.public", public.decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
