"""Statistics, plots and reports, computed from run folders and never from live objects."""
