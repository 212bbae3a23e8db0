"""OpenMAMA's publisher events and source discovery, over every bridge."""
