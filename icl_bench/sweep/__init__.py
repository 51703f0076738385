"""A sweep: what a user asks for, its plan, and how it is carried out."""
