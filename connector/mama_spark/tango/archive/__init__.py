"""Events of Tango devices as the tables of an archive, for ``jobs/tango_archive.py``."""
