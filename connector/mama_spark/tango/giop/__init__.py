"""CORBA as Tango uses it: CDR, GIOP messages, object references, TypeCodes. Pure."""
