"""Types and operations of Tango's IDL, encoded as CDR. Pure."""

__all__ = ["any_value", "calls", "negotiation", "structs", "union", "values"]
