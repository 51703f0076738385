"""Small decoders from scratch: what they may see, and how they know positions (Song et al. 2023).

    python benchmarks/from_scratch.py [--texts ../shared/data/books] [--length 256] [--steps 600]
                                      [--only global,grouped] [--layers 6 --width 128 --heads 4]

In small what figure 2 and table 2 of Zebra (arXiv 2312.08618, section 2.2) show: byte-level
decoders are trained with global, local, approximated and grouped attention (all rotary), and with
ALiBi and absolute positions (global), on the same bytes in the same order. Printed is the
perplexity of a byte by how many stand before it, in ten ranges up to twice the trained length, on
two books that none has seen. Sizes and steps are options, so that a GPU runs the real one. It shows
how things are measured; at this size differences are small.
"""

from __future__ import annotations

import argparse
import gzip
import math
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from icl_bench.models.attention_patterns import Pattern, ReceptiveSpan

BOS, BYTES, RANGES = 256, 257, 10
HELD = ("sherlock_holmes", "dorian_gray")
THETA = 131_072.0
"""Of the rotation, as in the paper."""


@dataclass(frozen=True)
class Kind:
    """One of the compared decoders."""

    spans: tuple[ReceptiveSpan, ...]
    positions: str = "rotary"


def kinds(layers: int, window: int, chunk: int) -> dict[str, Kind]:
    """All of them, by name."""
    full = (None,) * layers
    every = Pattern.parse("full").spans(full)
    return {
        "global": Kind(every),
        "local": Kind((ReceptiveSpan(window),) * layers),
        "approx": Kind(Pattern.parse(f"approx:{window},{chunk}").spans(full)),
        "grouped": Kind(Pattern.parse(f"grouped:3,{window}").spans(full)),
        "alibi": Kind(every, "alibi"),
        "absolute": Kind(every, "absolute"),
    }


def seen(span: ReceptiveSpan, tokens: int) -> tuple[Tensor, Tensor]:
    """What is added to scores, ``(tokens, means + tokens)``, and where each key stands."""
    at = np.arange(tokens)
    first = span.first(at)[:, None]
    bias = np.where((at[None] <= at[:, None]) & (at[None] >= first), 0.0, -math.inf)
    places = at.astype(float)
    if span.chunk and (count := tokens // span.chunk):
        ends = (np.arange(count) + 1) * span.chunk
        means = np.where(ends[None] <= first, math.log(span.chunk), -math.inf)
        bias = np.concatenate([means, bias], 1)
        places = np.concatenate([ends - (span.chunk + 1) / 2, places])
    return torch.tensor(bias, dtype=torch.float32), torch.tensor(places, dtype=torch.float32)


class Layer(nn.Module):
    """Attention and MLP, norms in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor, bias: Tensor, chunk: int | None, turn: Tensor | None) -> Tensor:
        """``x`` is ``(rows, tokens, width)``, ``bias`` ``(heads or 1, tokens, keys)``."""
        rows, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if turn is not None:
            query, key = rotated(query, turn), rotated(key, turn)
        if chunk and (count := tokens // chunk):
            key, value = (
                torch.cat([y[:, :, : count * chunk].unflatten(2, (count, chunk)).mean(3), y], 2) for y in (key, value)
            )
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])
        x = x + self.out(found.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))  # type: ignore[no-any-return]


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Turn pairs of dimensions by angles ``(tokens, head_dim / 2)``."""
    one, other = x.chunk(2, -1)
    cos, sin = turn.cos(), turn.sin()
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Decoder(nn.Module):
    """A byte-level decoder."""

    def __init__(self, kind: Kind, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.kind, self.heads, self.size = kind, heads, width // heads
        self.embed = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(longest, width) if kind.positions == "absolute" else None
        self.layers = nn.ModuleList(Layer(width, heads) for _ in kind.spans)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
        self._biases: dict[object, Tensor] = {}

    def bias(self, span: ReceptiveSpan, tokens: int, device: torch.device) -> Tensor:
        """Who sees whom, and with ALiBi how far away it is: ``(heads or 1, tokens, keys)``."""
        if (span, tokens) not in self._biases:
            found, places = seen(span, tokens)
            found = found[None]
            if self.kind.positions == "alibi":
                slopes = 2.0 ** (-8 * (torch.arange(self.heads) + 1) / self.heads)
                away = torch.arange(tokens)[:, None] - places[None]
                found = found - slopes[:, None, None] * away
            self._biases[span, tokens] = found.to(device)
        return self._biases[span, tokens]

    def forward(self, ids: Tensor) -> Tensor:
        """Losses of all bytes but the first, ``(rows, tokens - 1)``."""
        tokens, x, turn = ids.shape[1] - 1, self.embed(ids[:, :-1]), None
        if self.places is not None:
            x = x + self.places.weight[:tokens]
        if self.kind.positions == "rotary":
            half = self.size // 2
            rates = THETA ** (-torch.arange(half, device=ids.device) / half)
            turn = torch.arange(tokens, device=ids.device)[:, None] * rates
        for layer, span in zip(self.layers, self.kind.spans, strict=True):
            x = layer(x, self.bias(span, tokens, ids.device), span.chunk, turn)
        logits = self.head(self.norm(x)).float()
        wanted = ids[:, 1:].flatten()
        found = functional.cross_entropy(logits.flatten(0, 1), wanted, reduction="none")
        return found.view(ids.shape[0], tokens)


def books(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Bytes to learn from, and of books that are held back."""
    learnt: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for file in sorted(folder.glob("*.txt.gz")):
        raw = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8).astype(np.int64)
        (held if file.name.removesuffix(".txt.gz") in HELD else learnt).append(raw)
    if not learnt or not held:
        sys.exit(f"{folder}: needs {', '.join(HELD)} and other .txt.gz files")
    return np.concatenate(learnt), np.concatenate(held)


def windows(raw: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
    """BOS and so many bytes from each start: ``(starts, 1 + length)``."""
    rows = raw[starts[:, None] + np.arange(length)]
    return torch.from_numpy(np.concatenate([np.full((len(starts), 1), BOS), rows], 1))


def rate(steps: int, done: int) -> float:
    """The learning rate as a share of the highest: a tenth of the steps up, then down."""
    return min((done + 1) / max(1, steps // 10), max(0.01, 1 - done / steps))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/books"))
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--windows", type=int, default=64, help="of the held-back books")
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    learnt, held = books(asked.texts)
    longest = 2 * asked.length
    test = windows(held, np.linspace(0, len(held) - longest, asked.windows).astype(int), longest)
    found: dict[str, np.ndarray] = {}
    every = kinds(asked.layers, asked.window, asked.chunk)
    for name in asked.only.split(",") if asked.only else every:
        torch.manual_seed(0)
        model = Decoder(every[name], asked.width, asked.heads, longest).to(asked.device)
        rng, start = np.random.default_rng(0), time.perf_counter()
        optimizer = torch.optim.Adam(model.parameters(), asked.rate, (0.9, 0.99))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate, asked.steps))
        for _ in range(asked.steps):
            starts = rng.integers(len(learnt) - asked.length, size=asked.batch)
            loss = model(windows(learnt, starts, asked.length).to(asked.device)).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        with torch.no_grad():
            losses = torch.cat([model(part.to(asked.device)).cpu() for part in test.split(8)])
        found[name] = losses.double().numpy()
        print(
            f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters, "
            f"{time.perf_counter() - start:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    ends = np.linspace(0, longest, RANGES + 1).astype(int)
    print("| perplexity of bytes behind | " + " | ".join(found) + " |")
    print("| --- |" + " --- |" * len(found))
    for first, last in pairwise(ends.tolist()):
        cells = [f"{math.exp(losses[:, first:last].mean()):.2f}" for losses in found.values()]
        beyond = " (beyond)" if first >= asked.length else ""
        print(f"| {first} to {last}{beyond} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
