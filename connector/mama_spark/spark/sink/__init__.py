"""The format ``mamapub``: publishes a DataFrame."""
