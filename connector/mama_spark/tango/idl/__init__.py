"""Types and operations of Tango's IDL, encoded as CDR. Pure."""
