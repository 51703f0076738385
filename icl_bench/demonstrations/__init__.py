"""Demonstrations: which examples a prompt shows, in which order, and what it shows of them."""
