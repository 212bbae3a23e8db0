"""OpenMAMA's publishers with callbacks."""
