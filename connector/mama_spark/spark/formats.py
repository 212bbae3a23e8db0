"""The data source classes of the three formats.

Spark imports these classes in a new process for each step of each query (look-up, planning, commit), whichever format
is asked for. So this module imports nothing but pyspark's own, and each method imports what it needs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

from .plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .discovery.data_source import ChangesReader, ImageReader
    from .sink.data_source import MamaPubStreamWriter, MamaPubWriter
    from .subscribe.data_source import MamaSubReader, MamaSubStreamReader


class _MamaDataSource(DataSource):
    """Refuses a Spark that is too old, before anything is imported that such a Spark does not have."""

    @plain_errors
    def __init__(self, options: dict[str, str]) -> None:
        from .option_loading import check_spark

        super().__init__(options)
        check_spark(self.name())


class MamaPubDataSource(_MamaDataSource):
    """``df.write.format("mamapub")`` and ``df.writeStream.format("mamapub")``."""

    @classmethod
    def name(cls) -> str:
        return "mamapub"

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> MamaPubWriter:
        from .sink.data_source import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> MamaPubStreamWriter:
        from .sink.data_source import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)


class MamaSubDataSource(_MamaDataSource):
    """``spark.read.format("mamasub")`` and ``spark.readStream.format("mamasub")``.

    :cvar cluster_cores: tasks that the cluster runs at once; None = not known. Spark plans in a process without a
        session, so :func:`mama_spark.register` registers a class that knows
    """

    cluster_cores: ClassVar[int | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        """Called by ``load()``; Spark pickles the object for all that follows."""
        super().__init__(options)
        self.loaded_at = time.time_ns() // 1000  #: microseconds since the epoch

    @classmethod
    def name(cls) -> str:
        return "mamasub"

    @plain_errors
    def schema(self) -> StructType:
        from .subscribe.data_source import schema_for

        return schema_for(dict(self.options))

    @plain_errors
    def reader(self, schema: StructType) -> MamaSubReader:
        from .subscribe.data_source import batch_reader

        return batch_reader(dict(self.options), schema, self.loaded_at, self.cluster_cores)

    @plain_errors
    def streamReader(self, schema: StructType) -> MamaSubStreamReader:
        from .subscribe.data_source import stream_reader

        return stream_reader(dict(self.options), schema, self.loaded_at, self.cluster_cores)


class MamaDiscoveryDataSource(_MamaDataSource):
    """``spark.read.format("mamadiscovery")`` and ``spark.readStream.format("mamadiscovery")``."""

    @classmethod
    def name(cls) -> str:
        return "mamadiscovery"

    @plain_errors
    def schema(self) -> str:
        from .discovery.rows import DDL

        return DDL

    @plain_errors
    def reader(self, schema: StructType) -> ImageReader:
        from .discovery.data_source import image_reader

        return image_reader(dict(self.options), schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> ChangesReader:
        from .discovery.data_source import changes_reader

        return changes_reader(dict(self.options), schema)
