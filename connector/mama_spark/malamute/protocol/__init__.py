"""The Malamute protocol (MLP): commands, extensions and their rules. Pure."""
