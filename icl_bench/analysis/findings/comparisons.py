"""Paired comparisons: orders, selections, trainings, perturbations and models compared with a base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import BY_NAME, ByTask
from icl_bench.analysis.columns import SIGNED_LIMITS, Column
from icl_bench.analysis.draws import by_name, is_drawn, is_shuffled, source
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.predictions import joined
from icl_bench.analysis.statistics.paired import ALPHA, compare
from icl_bench.analysis.zero_shot import ZERO_SHOT, from_zero_shot, with_demonstrations
from icl_bench.demonstrations.perturbations import NONE
from icl_bench.metrics.scores import scored
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, FactsOf
from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context


def retrieval_gain(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare every other selector with random demonstrations as drawn (Bertsch et al., figure 2).

    Hybrids that begin with random demonstrations are paired with these by draw. Other selectors have different draws,
    and retrieval has a single one. For them, limits include the variance of random draws, and only test examples are
    paired. k=0 has no row. ``facts`` are those of each variant: a selector with an encoder has no common variant with
    random selection, and is compared with the variant that agrees in all other facts. ``difference`` is the gain. The
    columns are those of :func:`icl_bench.analysis.statistics.paired.compare`; ``advice`` is a selector.
    """
    import pandas as pd

    frame = with_demonstrations(frame)
    is_random = frame["select"] == "random"
    bases = is_random & (frame["order"] == "drawn")
    alike = by_name(frame["select"], lambda name: source(name) == source("random")).astype(bool)
    parts = [
        compare(
            frame[bases | (~is_random & (alike == matched))],
            {"select": "random", "order": "drawn"},
            matched=matched,
            facts=facts,
            about="draws",
        )
        for matched in (True, False)
    ]
    table = pd.concat([part for part in parts if len(part)] or parts[:1])
    return table.sort_values([*SETTING, "k"], kind="stable").reset_index(drop=True)


def demonstrations_gain(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare every curve with the prompt without demonstrations, at each k.

    That prompt is asked once. So limits include the variance of draws of demonstrations, and only test examples are
    paired. ``difference`` is below 0 if demonstrations hurt. The columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` is a selector or ``zero-shot``. ``facts`` are those
    of each variant.
    """
    import pandas as pd

    frame = from_zero_shot(frame, facts)
    shown, bare = with_demonstrations(frame), frame[frame["k"] == 0]
    curve = [name for name in SETTING if name != "select"]
    base = bare.drop_duplicates([*curve, "draw", "test_id"]).drop(columns="k").assign(select=ZERO_SHOT)
    base = base.merge(shown[[*curve, "k"]].drop_duplicates(), on=curve)
    both = pd.concat([shown.assign(select=shown["select"].astype(object)), base[shown.columns]], ignore_index=True)
    return compare(both, {"select": ZERO_SHOT}, matched=False, facts=facts, about="draws")


def sorting_penalty(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare ``by-label`` with ``drawn``, the same demonstrations (Bertsch et al. 2025, figure 5).

    ``difference`` is below 0 if sorting hurts. The columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` is an order. ``facts`` are those of each variant.
    """
    kept = frame[frame["order"].isin(["drawn", "by-label"])]
    kept = with_demonstrations(kept)
    return compare(kept, {"order": "drawn"}, facts=facts, about="demonstrations")


def retrieval_order(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare every other order of retrieved demonstrations with ``relevance``, the most similar last.

    Both sides have the same demonstrations. ``difference`` is above 0 if the other order is better. The columns are
    those of :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` is an order. A shuffled order is one
    random order, and its test applies to this order only. ``facts`` are those of each variant.
    """
    frame = with_demonstrations(frame)
    kept = frame[~by_name(frame["select"], is_drawn).astype(bool)]
    return compare(kept, {"order": "relevance"}, facts=facts, about="demonstrations")


def perturbation_effect(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare perturbed demonstrations with the same ones unperturbed, at each k.

    ``frame`` has predictions of test examples of both; ``facts`` are those of each variant. Both sides have the same
    selection, order and attention, and agree in all other facts. Points without such an unperturbed side are left out.
    Both sides have the same demonstrations and are paired by test example and draw. ``difference`` is below 0 if the
    perturbation hurts. The columns are those of :func:`icl_bench.analysis.statistics.paired.compare`, after
    ``perturbation``, the perturbation, which ``advice`` names.
    """
    frame = scored(with_demonstrations(frame))
    if "perturbation" not in frame:
        frame = frame.assign(perturbation=None)
    perturbation = frame["perturbation"].astype(object)
    frame = frame.assign(perturbation=perturbation.where(perturbation.notna(), str(NONE)))
    base = {"perturbation": str(NONE)}
    return compare(frame, base, facts=facts, about="demonstrations")


OF_BACKEND = ("backend", "dtype", "quantization", "kv_cache_dtype", "scoring")
"""Facts that differ between programs that compute the answers."""

OF_PROMPT = ("chat", "normalize")
"""Facts of prompts, and of how the scores of labels are read, that trained classifiers lack."""


def training_gain(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare training on the k examples with a prompt of them (Bertsch et al. 2025, figure 3).

    Fine-tuning, probe and neighbours are compared with random selection as drawn. Draws are matched, because both sides
    have the same examples. ``difference`` is above 0 if training is better. The columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`; ``advice`` is a method. ``facts`` are those of each variant.
    Prompts and training use different backends.
    """
    select, order = frame["select"].astype(object), frame["order"].astype(object)
    kept = frame[(select.isin(BASELINES) | (select == "random")) & (order == "drawn")]
    return compare(kept, {"select": "random"}, facts=facts, apart=(*OF_BACKEND, *OF_PROMPT), about="draws")


OF_MODEL = (*OF_BACKEND, "fingerprint", "max_answer_tokens")
"""Facts that differ between models."""


OF_POOL = ("pool", "pool_rows")
"""Facts that differ between tokenizers, where a task drops the rows with the most tokens from its pool."""


def _without_templates(facts: FactsOf) -> FactsOf:
    """Facts without those of a chat format that are the model's own: its template, and the text around contents."""
    own: dict[str, Any] = {"template": "", "around": []}
    return {
        variant: of if of.chat is None else of.model_copy(update={"chat": of.chat.model_copy(update=own)})
        for variant, of in facts.items()
    }


def compare_models(frame: pd.DataFrame, base: str, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare each other model with ``base`` on the same test rows (Bertsch et al., figure 10).

    With the same pool, equal draws have the same demonstrations and are paired. A point without a counterpart of the
    same pool, for example because of another tokenizer, is compared with the base's points of other pools; draws are
    then separate samples.

    The columns of :func:`icl_bench.analysis.statistics.paired.compare`, with ``direction`` (better, worse or equal, by
    the sign of the difference) and ``significant`` (p_holm <= ``ALPHA``). ``base_variant`` is the base's variant,
    because models never share one. ``facts`` are those of each variant.
    """
    facts = _without_templates(facts)
    table = compare(frame, {"model": base}, facts=facts, apart=OF_MODEL, unmatched=OF_POOL, about="draws")
    sign = np.sign(table["difference"]).map({1.0: "better", -1.0: "worse", 0.0: "equal"})
    return table.assign(direction=sign, significant=table["p_holm"] <= ALPHA)


def _models(context: Context) -> pd.DataFrame:
    """Every task's models compared with the base, or with that task's usual one."""
    # a shuffled order is one random order, not a way to prompt
    frame, base = context.from_zero_shot(context.unperturbed), context.base_model
    frame = frame[~is_shuffled(frame["order"])]
    model, task = (frame[name].astype(object) for name in ("model", "task"))
    parts = []
    for name, models in model.groupby(task).unique().items():
        of_task = frame[task == name]
        of = usual_base(of_task) if base is None else base
        if of in models:
            parts.append(compare_models(of_task, of, facts=context.facts))
    return joined(parts, compare_models(frame.iloc[:0], ""))


def usual_base(frame: pd.DataFrame) -> str:
    """The default base of comparisons between models; ``frame`` has one task.

    It is the model with the most points that other models have, too; the first by name on ties. So a model with few
    points does not reduce the comparisons of the others.
    """
    point = ["select", "order", "attention", "k"]
    points = frame[["model", *point]].astype(object).drop_duplicates()
    common = points.duplicated(point, keep=False).groupby(points["model"]).sum()
    return str(common.index[int(common.argmax())])


SHOWN_COMPARISON = (
    "k metric mean base_mean difference ci_low ci_high interval_over p p_holm advice rows "
    "draws base_draws left_out draws_sd draws_sd_of outlying_draws "
    "base_outlying_draws"
)


PRINTED_COMPARISON = "k draws base_draws difference ci_low p_holm advice"


SORTING_PENALTY = Finding(
    "sorting_penalty",
    lambda context: sorting_penalty(context.unperturbed, facts=context.facts),
    SIGNED_LIMITS,
    caption="Sorted less drawn",
    shown=f"task model series {SHOWN_COMPARISON}",
    printed=Printed(
        "sorting: {score} of by-label minus that of drawn, points", f"task model select {PRINTED_COMPARISON}"
    ),
    section=Section(
        "sorting",
        "What sorting by label costs",
        "Sorting penalty",
        "run --order drawn,by-label",
        "{Score} with the demonstrations grouped by label, minus that of the same ones as drawn. "
        "Below 0: sorting hurts.",
        "Bertsch et al. 2025, figure 5",
        Chart("difference", by=("task",), difference=True, shuffled="shown"),
        place=40,
    ),
    by_task=BY_NAME,
)


DEMONSTRATIONS_GAIN = Finding(
    "demonstrations_gain",
    lambda context: demonstrations_gain(context.prompts, facts=context.facts),
    SIGNED_LIMITS,
    caption="With demonstrations minus without",
    shown=f"task model series {SHOWN_COMPARISON}",
    printed=Printed(
        "demonstrations: {score} minus that without any, points", f"task model select {PRINTED_COMPARISON}"
    ),
    section=Section(
        "demonstrations-gain",
        "What demonstrations gain",
        "Gain over zero-shot",
        "run --k 0,10,100",
        "{Score} with k demonstrations, minus that of the prompt without any. Below 0: they hurt.",
        chart=Chart("difference", difference=True, shuffled="shown"),
        place=25,
    ),
    by_task=BY_NAME,
)


RETRIEVAL_ORDER = Finding(
    "retrieval_order",
    lambda context: retrieval_order(context.prompts, facts=context.facts),
    SIGNED_LIMITS,
    caption="Other orders minus relevance",
    shown=f"task model series {SHOWN_COMPARISON}",
    printed=Printed(
        "order of retrieved demonstrations: {score} minus that of the same by relevance, points",
        f"task model select order {PRINTED_COMPARISON}",
    ),
    section=Section(
        "retrieval-order",
        "Order of the retrieved demonstrations",
        "Order of retrieved demonstrations",
        "run --select bm25 --order relevance,relevance-reversed",
        "{Score} with the retrieved demonstrations in another order, minus that of the same ones with the "
        "most similar last. Below 0: the other order is worse. A shuffled order is one random order.",
        chart=Chart("difference", difference=True, shuffled="shown"),
        place=55,
    ),
    by_task=BY_NAME,
)


RETRIEVAL_GAIN = Finding(
    "retrieval_gain",
    lambda context: retrieval_gain(context.prompts, facts=context.facts),
    SIGNED_LIMITS,
    caption="Chosen less random",
    shown=f"task model series {SHOWN_COMPARISON}",
    printed=Printed(
        "selection: {score} minus that of random selection, points", f"task model select {PRINTED_COMPARISON}"
    ),
    section=Section(
        "retrieval",
        "What selection gains",
        "Selection gain",
        "run --select random,bm25",
        "{Score} with demonstrations chosen in another way, minus that with random ones. Above 0: choosing helps.",
        "Bertsch et al. 2025, figures 2 and 12",
        Chart("difference", difference=True, shuffled="shown"),
        place=50,
    ),
    by_task=BY_NAME,
)


TRAINING_GAIN = Finding(
    "training_gain",
    lambda context: training_gain(context.unperturbed, facts=context.facts),
    (*SIGNED_LIMITS, Column("select", "method")),
    caption="Trained less prompted",
    shown=f"task model series {SHOWN_COMPARISON}",
    printed=Printed(
        "training: {score} minus that of a prompt with the same examples, points",
        f"task model select {PRINTED_COMPARISON}",
    ),
    section=Section(
        "training",
        "Training beside prompting",
        "Training",
        "icl-bench finetune, and run --select random with the same k",
        "{Score} of what learns from the k examples, minus that of a prompt with the same ones. "
        'Above 0: training is better. Names that end in "-paper" are upper bounds: their '
        "checkpoint was chosen on the test rows.",
        "Bertsch et al. 2025, figure 3",
        Chart("difference", difference=True, shuffled="shown"),
        place=70,
    ),
    by_task=BY_NAME,
)


PERTURBATIONS = Finding(
    "perturbations",
    lambda context: perturbation_effect(context.of_tests, facts=context.facts),
    SIGNED_LIMITS,
    caption="Perturbed less unperturbed",
    shown=f"task model series perturbation {SHOWN_COMPARISON}",
    printed=Printed(
        "perturbed demonstrations: {score} minus that of unperturbed ones, points",
        f"task model perturbation select order {PRINTED_COMPARISON}",
    ),
    section=Section(
        "perturbations",
        "What does the model learn from demonstrations?",
        "Perturbed demonstrations",
        "run again with --perturbation labels:permuted",
        "{Score} with perturbed demonstrations (labels permuted or wrong, inputs or labels alone, "
        "the nearest to the query left out) beside that with the same ones unperturbed, and the "
        "difference. Far below 0: what was perturbed is what the model uses.",
        "Min et al. 2022, figures 3 and 4",
        also=("shown_labels", "learning_ratio"),
        place=60,
    ),
    by_task=ByTask(("perturbation", "task")),
)


MODELS = Finding(
    "models",
    _models,
    SIGNED_LIMITS,
    caption="Models at equal k",
    shown=f"task model series {SHOWN_COMPARISON.replace('metric', 'base_model metric')}",
    printed=Printed(
        "models: {score} minus that of the base model, points",
        f"task model base_model select order {PRINTED_COMPARISON}",
    ),
    section=Section(
        "models",
        "Models compared",
        "Models compared",
        "run the same with another --model; the one with the most common points is the base",
        "{Score} minus that of {base_model} on the same test rows, at equal k. Above 0: better. "
        "Draws are paired if both models have the same pool.",
        "Bertsch et al. 2025, figure 10",
        Chart("difference", by=("task", "curve"), line="model", difference=True),
        place=100,
    ),
    by_task=BY_NAME,
)
