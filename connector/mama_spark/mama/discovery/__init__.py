"""OpenMAMA's source discovery."""
