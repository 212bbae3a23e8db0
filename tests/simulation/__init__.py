"""The product in a simulated world: virtual time, one scheduler with a seed, no threads, no sockets, no sleeps.

What the worlds show of NATS and the sink, and the tests of real servers that show that the world is like them:

- a killed server: ``publish``, ``sink``; ``test_nats_faults``, ``test_sink_faults``
- a cut connection, a server that stands still: ``publish``; ``test_nats_faults`` (fast ingest)
- a killed leader, a follower that is down: ``replicated``, ``ordered``; ``test_cluster`` (fast ingest in order)
- one of three servers stands still: ``replicated``, ``mamasub``; ``test_frozen_server``
- order over a killed broker: ``ordered``; ``test_nats_faults`` (killed, in order)
- a server that restarts under a reader: ``mamasub``; ``test_log_connection_faults`` (killed)
- writers that stand still, lost acknowledgements: ``exactly-once``; ``test_exactly_once``, ``test_late_copies``
"""
