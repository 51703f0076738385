"""Training to read demonstrations or passages as vectors."""
