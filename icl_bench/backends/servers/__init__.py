"""Engines behind HTTP: one client per provider."""
