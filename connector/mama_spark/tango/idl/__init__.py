"""Types and operations of the Tango IDL, encoded as CDR. Pure."""

__all__ = ["any_value", "calls", "negotiation", "structs", "union", "values"]
