"""On which file system a folder is."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.flightlog.mounts import file_system

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /mnt rw,nosuid shared:1 - nfs4 files:/export rw,vers=4.2
24 23 0:21 / /mnt/my\040disk rw shared:2 master:1 - xfs /dev/vdb rw
25 22 0:22 / /data rw - ext4 /dev/vdc rw
26 22 0:23 / /data rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/log", "ext4"),
        ("/mnt", "nfs4"),
        ("/mnt/log/deep", "nfs4"),
        ("/mnt2/log", "ext4"),
        ("/mnt/my disk/log", "xfs"),
        ("/data/log", "fuse.s3fs"),  # the later mount hides the earlier one
    ],
)
def test_longest_mount_point_that_holds_the_path_counts(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert file_system(path, str(tmp_path / "mounts")) == kind


def test_where_nobody_tells_nothing_is_known(tmp_path: Path) -> None:
    assert file_system("/log", str(tmp_path / "none")) is None
