"""Messages and peers of OpenMAMA as rows of Spark."""
