"""Analysis of stored predictions. It reads predictions and nothing else."""

from __future__ import annotations
