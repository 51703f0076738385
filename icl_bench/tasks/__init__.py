"""Tasks: specifications, sources of rows, and examples."""
