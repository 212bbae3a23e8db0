"""The parts of CORBA that Tango uses: CDR, GIOP messages, object references and TypeCodes. Pure."""
