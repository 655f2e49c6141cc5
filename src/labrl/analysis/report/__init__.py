"""`report.html`: one file that needs nothing else, of a run, an experiment or a comparison."""
