"""The report page of a flight log: one HTML file with plots. Needs the extra ``report``."""
