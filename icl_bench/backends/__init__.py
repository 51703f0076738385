"""Backends: they turn prompts (token ids) into answers."""

from __future__ import annotations
