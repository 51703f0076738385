"""Metrics: scores of answers, one file each, and the comparison of a task's points by them."""
