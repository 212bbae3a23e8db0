"""The report page: what became of the rows of a flight log, as one HTML file with plots. Needs the extra ``report``."""
