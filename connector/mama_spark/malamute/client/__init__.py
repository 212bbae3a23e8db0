"""The client of a Malamute broker."""
