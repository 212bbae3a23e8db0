"""Compares a flight log with what is stored: ``mama audit``, and the job for large logs."""
