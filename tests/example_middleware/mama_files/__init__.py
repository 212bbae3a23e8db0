"""A middleware that is one file: messages are its lines. An example of a package that mama-spark finds when it is
installed, by its entry point; this module is imported for it alone, and the parts when they are used."""

from mama_spark.contracts.middlewares import Middleware

MIDDLEWARE = Middleware(
    "files",
    "Files",
    ("files",),
    package="mama-files",
    named_streams=False,
    publisher_bridge="mama_files.bridge:publisher_bridge",
    log_bridge="mama_files.log:log_bridge",
    discovery_bridge="mama_files.discovery:discovery_bridge",
)
