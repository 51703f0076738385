"""Models: where they come from, their architecture, attention patterns, text encoders."""
