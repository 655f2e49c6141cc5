"""`report.html`: a self-contained file on a run, an experiment or a comparison."""
