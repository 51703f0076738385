"""Backends behind HTTP: one client for each provider."""
