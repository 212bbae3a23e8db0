"""What OpenMAMA's ZeroMQ bridges put on the wire: frames and naming. Pure."""

__all__ = ["frames", "naming"]
