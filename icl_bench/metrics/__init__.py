"""Metrics: scores of answers, one file each, and how a task's points are compared by them."""
