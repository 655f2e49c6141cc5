"""Statistics, plots and reports: reads run folders, never live objects."""
