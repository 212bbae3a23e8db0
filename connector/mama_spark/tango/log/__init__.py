"""Log of Tango events: the format of its records, and the state of the recorder that writes them. Pure."""
