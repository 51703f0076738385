"""Models: finding and loading them, their architecture, attention patterns, text encoders."""
