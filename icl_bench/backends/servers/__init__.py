"""Backends behind HTTP: one backend, and an interface for each provider."""
