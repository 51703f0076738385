"""Batches of token ids: rows of similar lengths, padded on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from icl_bench.training.examples import Row

if TYPE_CHECKING:
    import torch


def padded(ids: Sequence[Sequence[int]], pad: int) -> dict[str, torch.Tensor]:
    """A batch padded on the right: ids and mask, ``(rows, longest)``."""
    import torch

    longest = max(map(len, ids))
    tokens = torch.full((len(ids), longest), pad)
    mask = torch.zeros((len(ids), longest), dtype=torch.long)
    for number, row in enumerate(ids):
        tokens[number, : len(row)] = torch.tensor(list(row))
        mask[number, : len(row)] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def batches(rows: Sequence[Row], size: int) -> Iterator[list[int]]:
    """Numbers of the rows in batches of similar lengths, longest first."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
    for start in range(0, len(order), size):
        yield order[start : start + size]
