"""Tasks: specifications, where their rows come from, and their examples."""
