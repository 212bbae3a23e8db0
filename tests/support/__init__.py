"""What tests share and nobody else needs."""
