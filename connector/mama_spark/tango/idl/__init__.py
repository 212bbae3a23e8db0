"""The types and operations of Tango's IDL as CDR. Pure."""
