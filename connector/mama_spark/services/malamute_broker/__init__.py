"""The Malamute broker: ``mama broker``."""
