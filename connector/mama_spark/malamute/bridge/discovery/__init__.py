"""Source discovery in the event stream of a Malamute broker."""
