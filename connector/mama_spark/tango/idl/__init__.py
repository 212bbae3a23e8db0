"""Types and operations of the Tango IDL, encoded as CDR. Pure."""
