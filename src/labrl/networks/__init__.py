"""Plain torch modules, built from observation and action spaces."""
