"""Results: cells on disk, written, read, exported and imported."""
