"""Demonstrations: which examples a prompt shows, in which order, and how they are perturbed."""
