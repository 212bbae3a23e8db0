"""The sessions of a broker's clients: a state machine and its parts, all pure (:mod:`.state_machine`)."""

__all__ = [
    "backlog",
    "broker_events",
    "byte_queue",
    "client_output",
    "client_session",
    "client_table",
    "counters",
    "credit_lender",
    "delivery_scheduler",
    "mailboxes",
    "repeat_limiter",
    "settings",
    "state_machine",
    "states",
    "streams",
]
