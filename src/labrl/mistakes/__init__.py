"""What is wrong with a command line, and what was meant by it."""
