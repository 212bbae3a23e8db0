"""The data source classes of the three formats.

Spark imports these classes in a new process for each step of each query (look-up, planning, commit), whichever format
is asked for. So this module imports nothing but pyspark's own, and each method imports what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource

from .plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .discovery.data_source import ChangesReader, ImageReader
    from .sink.data_source import MamaPubStreamWriter, MamaPubWriter
    from .subscribe.data_source import MamaSubReader, MamaSubStreamReader


class _MamaDataSource(DataSource):
    """:cvar session_defaults: ``spark.mama.<option>`` of the session in which the class was registered"""

    session_defaults: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @plain_errors
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({**self.session_defaults, **options})
        self._refuse_defaults(options)
        if "provider" in self.options and "owner" in self.options:  # Spark asks for the schema of a new table
            raise _not_a_table(self.name())

    @staticmethod
    def _refuse_defaults(options: Mapping[str, str]) -> None:
        """Refuse defaults among the query's own options: a wrong name among them would be left out in silence."""
        for key in options:
            if key.lower().startswith("spark.mama."):
                from ..contracts.errors import OptionError

                raise OptionError(f"{key} is a setting of Spark's configuration: the query's option is {key[11:]}")

    @plain_errors
    def _goes_one_way(self, *_: Any, **__: Any) -> Any:
        """Raise for all methods that a format leaves out; Spark would show a trace."""
        from ..contracts.errors import ConfigError

        if self.name() == "mamapub":
            raise ConfigError('mamapub only writes: read messages with spark.read.format("mamasub")')
        raise ConfigError(f'{self.name()} only reads: publish with df.write.format("mamapub")')

    reader = streamReader = writer = streamWriter = _goes_one_way

    def _require_options(self, needed: str) -> None:
        """A table of the catalog that was made with columns comes without options: those of some default would hold."""
        from ..contracts.errors import OptionError
        from ..options.scopes import STREAM_WRITE
        from .session_defaults import PREFIX

        if all(name.lower().startswith(PREFIX) or name.lower() in STREAM_WRITE.spark_keys for name in self.options):
            raise OptionError(
                f"option {needed} is needed: {self.name()} was given no option at all by the query. If it names a "
                f"table: {_not_a_table(self.name())}"
            )


def _not_a_table(name: str) -> Exception:
    """Spark keeps the options of a table in its catalog, and hands none of them to who reads or writes it."""
    from ..contracts.errors import ConfigError

    way = 'df.write.format("mamapub")' if name == "mamapub" else f'spark.read.format("{name}")'
    return ConfigError(
        f"{name} cannot be a table of Spark's catalog, because Spark forgets the options of such a table: use "
        f"CREATE TEMPORARY VIEW ... USING {name} OPTIONS (...), or {way}"
    )


class MamaPubDataSource(_MamaDataSource):
    """``df.write.format("mamapub")`` and ``df.writeStream.format("mamapub")``."""

    @classmethod
    def name(cls) -> str:
        return "mamapub"

    @plain_errors
    def schema(self) -> StructType:
        """Schema of a view without one, which Spark would only read: ``INSERT INTO`` needs to know the columns."""
        from ..contracts.errors import ConfigError

        raise ConfigError(
            "mamapub writes, and has no columns of its own: name those that INSERT INTO writes, CREATE TEMPORARY VIEW "
            "v (topic STRING, value STRING) USING mamapub OPTIONS (...); messages are read with format mamasub"
        )

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> MamaPubWriter:
        from .sink.data_source import batch_writer

        self._require_options("url")
        return batch_writer(dict(self.options), schema, overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> MamaPubStreamWriter:
        from .sink.data_source import stream_writer

        self._require_options("url")
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
        # Time of day: what "now" is in an option.
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

        self._require_options("topics (or stream)")
        return batch_reader(dict(self.options), schema, self.loaded_at, self.cluster_cores)

    @plain_errors
    def streamReader(self, schema: StructType) -> MamaSubStreamReader:
        from .features import for_this_spark
        from .subscribe.data_source import stream_reader

        self._require_options("topics (or stream)")
        return for_this_spark(stream_reader(dict(self.options), schema, self.loaded_at, self.cluster_cores))


class MamaDiscoveryDataSource(_MamaDataSource):
    """``spark.read.format("mamadiscovery")`` and ``spark.readStream.format("mamadiscovery")``."""

    @classmethod
    def name(cls) -> str:
        return "mamadiscovery"

    @plain_errors
    def schema(self) -> str:
        from .discovery.row_batches import DDL

        return DDL

    @plain_errors
    def reader(self, schema: StructType) -> ImageReader:
        from .discovery.data_source import image_reader

        return image_reader(dict(self.options), schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> ChangesReader:
        from .discovery.data_source import changes_reader
        from .features import for_this_spark

        return for_this_spark(changes_reader(dict(self.options), schema))
