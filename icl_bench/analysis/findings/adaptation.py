"""The effect of adapting a model to a pattern: losses of texts and scores, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.statistics.texts import interval_over, ratio_limits, sampled
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.model_names import names_apart, with_base_apart
from icl_bench.results.perplexity_losses import read_losses
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import LossesMeta, StepLoss, TrainingMeta

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

When = Literal["before", "after"]

WHENS: tuple[When, ...] = ("before", "after")

LOSSES = [
    "base",
    "pattern",
    "adapted",
    "attention",
    "trained",
    "model",
    "dtype",
    "window_tokens",
    "tokens",
    "after",
    "length",
    "windows",
    "loss",
    "perplexity",
    "added",
    "won_back",
    "won_back_low",
    "won_back_high",
    "interval_over",
    "against",
    "prefill_flops",
    "cache_bytes",
]

POINTS = [
    "base",
    "pattern",
    "adapted",
    "attention",
    "trained",
    "model",
    "task",
    "select",
    "order",
    "k",
    "variant",
    "draws",
    "test_rows",
    "metric",
    "score",
    "ci_low",
    "ci_high",
    "query_flops",
    "cache_bytes",
]

COURSE = ["base", "pattern", "model", "tokens", "step", "validation", "training_flops"]


@dataclass(frozen=True)
class _Model:
    """A model in the results."""

    name: str
    fingerprint: str
    attention: str
    adapted: TrainingMeta | None = field(default=None, compare=False)
    """Its training, if it was adapted."""

    @property
    def base(self) -> tuple[str, str]:
        """The base model of an adapted model, or itself: name and fingerprint."""
        if self.adapted is None:
            return self.name, self.fingerprint
        return self.adapted.base or "", self.adapted.base_fingerprint or ""

    @property
    def tokens(self) -> float:
        """Tokens of its adaptation."""
        return self.adapted.tokens or 0.0 if self.adapted else 0.0


def _adapted(training: TrainingMeta | None) -> TrainingMeta | None:
    """A training, if it is an adaptation."""
    return training if training and training.is_adaptation else None


def _sides(
    models: Sequence[_Model], texts: Mapping[_Model, Set[str]] | None = None
) -> Iterator[dict[tuple[str, When], _Model]]:
    """For each model that was adapted to a pattern: the model and its comparisons.

    These are the base with full attention and under the pattern, and the base trained further with full attention; of
    several, the one with the closest number of training tokens. With ``texts`` (the texts that each model has read),
    the latter counts only if it has read a text that the others have read, too.
    """
    plain = {model.attention: model for model in models if model.adapted is None}
    in_full = [
        model
        for model in models
        if model.adapted and model.adapted.attention == str(FULL) and model.attention == str(FULL)
    ]
    for model in models:
        if model.adapted is None or model.attention == str(FULL):
            continue
        if model.adapted.attention != model.attention:
            continue
        sides: dict[tuple[str, When], _Model] = {(model.attention, "after"): model}
        for attention in (str(FULL), model.attention):
            if attention in plain:
                sides[attention, "before"] = plain[attention]
        read = set.intersection(*(set(texts[side]) for side in sides.values())) if texts else set()
        comparable = [other for other in in_full if texts is None or read & texts[other]]
        if comparable:
            like = min(comparable, key=lambda other: (abs(other.tokens - model.tokens), other.name))
            sides[str(FULL), "after"] = like
        yield sides


def _of(sides: Mapping[tuple[str, When], _Model]) -> _Model:
    """The model that was adapted to a pattern, among its comparisons."""
    return next(model for (attention, when), model in sides.items() if when == "after" and attention != str(FULL))


def adaptation_losses(results: Place, model: str | None = None) -> pd.DataFrame:
    """Losses of long texts before and after models were adapted to a pattern.

    One row for each adapted model (``adapted``), each comparison, and each range of lengths; losses of another dtype or
    window length are compared separately. A comparison is ``attention`` (``full`` or the pattern) and ``trained``
    (before, after); ``full`` after is the same base trained further with full attention, because the training itself
    has an effect, too (Song et al. 2023, table 4). All rows use the windows that all of them have read.

    Columns: base, pattern, adapted, attention, trained, model, dtype, window_tokens (of each window), tokens (of the
    training), after and length (of the range, in tokens), windows, loss (nats per token), perplexity, ``added`` (the
    loss minus that of full attention, before and after), ``won_back`` (for the pattern after training: the share of the
    previously added loss that the training removes) with its limits (95%, Student's t for the ratio of means;
    :mod:`icl_bench.analysis.statistics.texts`), ``interval_over`` (texts, or the windows of one text), and ``against``,
    the full attention that it is compared with after training: ``trained too``, or ``as it was`` if none was trained;
    prefill_flops and cache_bytes by formula. Empty if no model was adapted.
    """
    import pandas as pd

    groups: dict[tuple[Any, ...], dict[_Model, dict[str, np.ndarray]]] = {}
    costs: dict[tuple[Any, ...], dict[_Model, dict[str, Mapping[str, float]]]] = {}
    for tested, meta, losses in _in_losses(results):
        key = (*tested.base, meta.dtype, meta.length)
        of_model = groups.setdefault(key, {}).setdefault(tested, {})
        of_model[meta.sha256] = max(of_model.get(meta.sha256, losses), losses, key=len)  # a text may have several files
        costs.setdefault(key, {}).setdefault(tested, {}).update(meta.by_length)
    rows: list[dict[str, Any]] = []
    for key, held in groups.items():
        *_, dtype, window = key
        for sides in _sides(list(held), {tested: set(losses) for tested, losses in held.items()}):
            rows += ({**row, "dtype": dtype, "window_tokens": window} for row in _of_sides(sides, held, costs[key]))
    rows = [row for row in rows if model in (None, row["model"], row["base"])]
    return pd.DataFrame(rows, columns=LOSSES)


def _of_sides(
    sides: Mapping[tuple[str, When], _Model],
    held: Mapping[_Model, Mapping[str, np.ndarray]],
    costs: Mapping[_Model, Mapping[str, Mapping[str, float]]],
) -> Iterator[dict[str, Any]]:
    adapted = _of(sides)
    pattern = adapted.attention
    texts = sorted(set.intersection(*(set(held[model]) for model in sides.values())))
    if not texts:
        return
    counts = {text: min(len(held[model][text]) for model in sides.values()) for text in texts}
    text_of = np.repeat(texts, [counts[text] for text in texts])
    losses = {
        side: np.concatenate([held[model][text][: counts[text]] for text in texts]) for side, model in sides.items()
    }
    lengths = sorted(set.intersection(*({int(n) for n in costs[model]} for model in sides.values())))
    for after, length in zip([1, *lengths], lengths, strict=False):
        part = {side: values[:, after - 1 : length - 1].mean(1) for side, values in losses.items()}
        for when, attention in product(WHENS, (str(FULL), pattern)):
            side = (attention, when)
            if side not in part:
                continue
            model = sides[side]
            row = {
                "base": adapted.base[0],
                "pattern": pattern,
                "adapted": adapted.name,
                "attention": attention,
                "trained": when,
                "model": model.name,
                "tokens": model.tokens,
                "after": after,
                "length": length,
                "windows": len(part[side]),
                "loss": float(part[side].mean()),
                "perplexity": float(np.exp(part[side].mean())),
                **costs[model][str(length)],
            }
            if attention == pattern:
                row |= _won_back(part, text_of, pattern, when)
            yield row


def _won_back(
    part: Mapping[tuple[str, When], np.ndarray], text_of: np.ndarray, pattern: str, when: When
) -> dict[str, Any]:
    """The loss that a pattern adds, and the share of it that training removes.

    ``text_of`` are the texts of the windows.
    """
    full = str(FULL)
    trained_too = when == "after" and (full, "after") in part
    base = part.get((full, "after" if trained_too else "before"))
    if base is None:
        return {}
    added = part[pattern, when] - base
    row: dict[str, Any] = {"added": float(added.mean())}
    if when == "before" or not {(full, "before"), (pattern, "before")} <= part.keys():
        return row
    before = part[pattern, "before"] - part[full, "before"]
    row["against"] = "trained too" if trained_too else "as it was"
    if before.mean() > 0:
        low, high = ratio_limits(sampled(added, text_of), sampled(before, text_of))
        row["won_back"] = float(1 - added.mean() / before.mean())
        row |= {"won_back_low": 1 - high, "won_back_high": 1 - low, "interval_over": interval_over(text_of)}
    return row


def adaptation_points(context: Context) -> pd.DataFrame:
    """Scores before and after models were adapted to a pattern, one row per point of each curve.

    Columns: base, pattern, adapted, attention, trained and model as for :func:`adaptation_losses`; task, select, order,
    k and variant; draws, test_rows, metric, score with ci_low and ci_high; query_flops and cache_bytes. Empty if no
    model was adapted.
    """
    import pandas as pd

    models: dict[tuple[str, str], set[_Model]] = {}
    for model in _in_cells(context):
        models.setdefault(model.base, set()).add(model)
    named = [sorted(group, key=lambda model: (model.name, model.attention)) for group in models.values()]
    sides = [compared for group in named for compared in _sides(group)]
    if not sides:
        return pd.DataFrame(columns=POINTS)
    at = ["task", "model", "select", "order", "attention", "k", "variant"]
    costs = context.table("cost")[[*at, "query_flops", "cache_bytes"]]
    curves = context.table("curves").merge(costs, on=at, how="left")
    parts = []
    for compared in sides:
        adapted = _of(compared)
        for (attention, when), model in compared.items():
            mine = (curves["model"] == model.name) & (curves["attention"] == attention)
            parts.append(
                curves[mine].assign(base=model.base[0], pattern=adapted.attention, adapted=adapted.name, trained=when)
            )
    table = pd.concat(parts, ignore_index=True)[POINTS]
    whens = {"before": 0, "after": 1}
    by = ["base", "pattern", "adapted", "task", "select", "order", "k", "trained", "attention", "variant"]
    return table.sort_values(
        by, key=lambda column: column.map(whens) if column.name == "trained" else column
    ).reset_index(drop=True)


def adaptation_course(context: Context) -> pd.DataFrame:
    """Losses on held-out texts during adaptation, one row per evaluation.

    Columns: base, pattern (``full`` for training with full attention), model, tokens (of the whole training), step,
    validation (nats per token, under the pattern), and training_flops (the training's operations up to this step, by
    its tokens; NaN for trainings that did not count them; Song et al. 2023, figure 3). Empty if no model was adapted.
    """
    import pandas as pd

    models = {model for model in _in_cells(context) if model.adapted is not None}
    if context.results is not None:
        models |= {model for model, _, _ in _in_losses(context.results) if model.adapted is not None}
    rows = [
        {
            "base": model.base[0],
            "pattern": model.attention,
            "model": model.name,
            "tokens": model.tokens,
            "step": look.step,
            "validation": look.validation,
            "training_flops": _flops_up_to(model.adapted, look),
        }
        for model in sorted(models, key=lambda model: (model.base, model.name))
        if model.adapted is not None
        and model.adapted.attention == model.attention
        and context.model in (None, model.name, model.base[0])
        for look in model.adapted.losses
    ]
    return pd.DataFrame(rows, columns=COURSE)


def _flops_up_to(training: TrainingMeta, look: StepLoss) -> float:
    """A training's operations up to an evaluation of its losses; NaN if its tokens were not counted."""
    if look.tokens is None or not training.tokens or training.flops is None:
        return np.nan
    return training.flops * look.tokens / training.tokens


def _in_cells(context: Context) -> Iterator[_Model]:
    """The models with stored predictions."""
    for meta in context.stored.own_cells.values():
        yield _Model(meta.spec.model, meta.facts.fingerprint or "", meta.spec.attention, _adapted(meta.training))


def _in_losses(results: Place) -> Iterator[tuple[_Model, LossesMeta, np.ndarray]]:
    """The models with stored losses of texts, with the metadata and losses of each file.

    Losses at other positions than the model's own are left out.
    """
    stored = [held for held in read_losses(results) if not (held[0].rope_scale or held[0].rope_theta)]
    named = names_apart((meta.model, meta.fingerprint) for meta, _ in stored)
    for meta, losses in stored:
        name = named.get((meta.model, meta.fingerprint), meta.model)
        adapted = _adapted(meta.training)
        adapted = adapted and with_base_apart(adapted, named)
        yield _Model(name, meta.fingerprint, meta.attention, adapted), meta, losses


def _losses(context: Context) -> pd.DataFrame:
    import pandas as pd

    if context.results is None:
        return pd.DataFrame(columns=LOSSES)
    return adaptation_losses(context.results, context.model)


ADAPTATION_LOSSES = Finding(
    "adaptation_losses",
    _losses,
    (
        Column("base", "model", "text"),
        Column("trained", "training", "text"),
        Column("adapted", "adapted model", "text"),
        Column("dtype", "dtype", "text"),
        Column("window_tokens", "tokens of a window", "count"),
        Column("after", "tokens behind", "count"),
        Column("length", "up to", "count"),
        Column("windows", "windows", "count"),
        Column("perplexity", "perplexity", "number"),
        Column("added", "loss added (nats)", "number"),
        Column("won_back", "won back", "share"),
        Column("won_back_low", "95% from", "share", upper="won_back_high"),
        Column("won_back_high", "95% to", "share"),
        Column("against", "full attention beside it", "text"),
    ),
    caption="Losses before and after",
    shown="base attention trained adapted after length perplexity added won_back won_back_low "
    "won_back_high interval_over against dtype windows window_tokens prefill_flops cache_bytes",
    section=Section(
        "adaptation",
        "What did adaptation recover?",
        "Adaptation",
        "icl-bench adapt, and run or perplexity with the model before and after",
        "A pattern lowers the quality of a model that was not trained with it. Continued training under the "
        "pattern recovers part of it: the table has the share of the added loss that disappears, compared with "
        "full attention that was trained equally long, if there is one.",
        "Song et al. 2023 (Zebra), table 4",
        also=("adaptation_points", "adaptation_course"),
        place=95,
    ),
)


ADAPTATION_POINTS = Finding(
    "adaptation_points",
    adaptation_points,
    (
        Column("base", "model", "text"),
        Column("trained", "training", "text"),
        Column("adapted", "adapted model", "text"),
        Column("setting", "setting", "text", optional=True),
    ),
    caption="{Score} before and after",
    shown="base attention trained adapted task select order setting k score ci_low ci_high draws test_rows "
    "query_flops cache_bytes",
)


ADAPTATION_COURSE = Finding(
    "adaptation_course",
    adaptation_course,
    (
        Column("base", "model", "text"),
        Column("pattern", "attention", "text"),
        Column("tokens", "tokens learnt from", "count"),
        Column("step", "step", "count"),
        Column("validation", "loss on held-back texts (nats)", "number"),
    ),
    caption="Losses while training",
    shown="base pattern model tokens step validation training_flops",
)
