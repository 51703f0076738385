"""A sweep: a user's request, its plan, and its execution."""
