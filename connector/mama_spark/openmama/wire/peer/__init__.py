"""A peer of an OpenMAMA network over ZeroMQ: its sockets, who else is there, who subscribes to what.

:class:`.peer.OpenMamaPeer` owns the sockets; what it decides by is pure: the naming client and the table of
subscriptions.
"""
