"""Records Tango events into a record log."""
