"""Training of the vectors that stand for demonstrations."""
