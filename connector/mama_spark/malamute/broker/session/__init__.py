"""The sessions of a broker's clients: a state machine and its parts, all pure (:mod:`.state_machine`)."""
