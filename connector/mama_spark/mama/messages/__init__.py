"""MAMA messages and their wire form (OMNM). Pure."""

__all__ = [
    "event_records",
    "field_types",
    "msg",
    "omnm",
    "source_records",
    "status",
    "values",
]
