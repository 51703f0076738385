"""Methods that learn from the examples, by the name they have in --method."""
