"""What stored predictions say: analysis reads predictions and nothing else."""

from __future__ import annotations
