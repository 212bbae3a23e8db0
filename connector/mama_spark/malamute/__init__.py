"""The Malamute protocol room: MLP on the wire, the state machines of both sides, streams and their engines."""
