"""Backends that use HTTP: one backend class, and an interface for each provider."""
