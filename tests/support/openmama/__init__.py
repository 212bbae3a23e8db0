"""A network of OpenMAMA peers on loopback."""
