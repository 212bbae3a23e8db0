"""The sessions of a broker's clients: a state machine and its parts, all pure (:mod:`.state_machine`)."""

__all__ = [
    "broker_events",
    "byte_queue",
    "client_output",
    "client_session",
    "client_table",
    "counters",
    "delivery_scheduler",
    "engine_backlog",
    "engine_credit",
    "mailboxes",
    "repeat_limiter",
    "settings",
    "state_machine",
    "states",
    "streams",
]
