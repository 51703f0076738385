"""Notes on data, pool and selection that a user should read before a run."""

from __future__ import annotations

import numpy as np

from icl_bench.demonstrations.diverse import SharedDiversity
from icl_bench.demonstrations.ordering import InPoolOrder
from icl_bench.demonstrations.perturbations import NONE
from icl_bench.demonstrations.random import First
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.text_encoders import mostly_other_scripts
from icl_bench.models.vector_encoder import VectorEncoder, vector_settings_of
from icl_bench.prompts.chat import ChatForm
from icl_bench.results.facts import LABELLED
from icl_bench.sweep.plan import CellPlan, Plan
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import leaking
from icl_bench.wording import counted

SHARES = 3
"""A note lists at most this many values of k."""


def headline(task: TokenizedTask) -> str:
    """Test rows, pool and data of a task, in one line."""
    data = task.data
    return f"{data.spec.name}: {queries_in_words(task)}, pool of {len(task.whole_pool or task.pool):,} ({data.origin})"


def queries_in_words(task: TokenizedTask) -> str:
    """The queries of each cell, in words."""
    count = len(task.data.test)
    if task.queries == "copied":
        return f"up to {count:,} of the prompt's own demonstrations asked"
    return counted(count, "test row") if task.asked is None else f"{counted(count, 'row')} of the pool"


def notes(sweep: Sweep, *, checked: bool = False) -> list[str]:
    """Notes on data, pool and selection, one a line. If the data are ``checked``, the user knows of duplicates."""
    task = sweep.task
    texts = list(task.data.notes)
    if not sweep.window_is_known:
        texts.append(
            f"the server does not report the context window of {sweep.model.name}; "
            f"{sweep.model.context_tokens:,} tokens are assumed, the window of {sweep.spec.tokenizer} (--context)"
        )
    if isinstance(form := task.encoder.form, ChatForm):
        texts += form.notes()
        if sweep.model.tokenizer is None and not task.data.spec.is_classification and (mark := form.own_thought):
            texts.append(  # a server's answer is without it
                f"the model may begin a free answer with a thought of its own ({mark}), which counts as a part of the "
                "answer; the chat template may have an argument against it, like --chat-arg enable_thinking=false"
            )
    pool = task.whole_pool or task.pool
    if pool.dropped:
        share = task.data.spec.pool.drop_longest
        longest = int(task.lengths[pool.rows].max())
        texts.append(
            f"{pool.dropped:,} train rows longer than {longest} tokens are not in the "
            f"pool (the longest {share:.0%}, pool.drop_longest)"
        )
    texts += [note for metric in task.metrics for note in metric.notes()]
    texts += [choice.caution for choice in sweep.spec.select if choice.caution]
    texts += _held_out_order(sweep)
    texts += [
        f"{choice}: {choice.fewest(count):,} demonstrations, {choice.each} of each of {count:,} "
        "labels, whatever --k says"
        for choice in sweep.spec.select
        if choice.says_k and (count := len(task.pool.labels))
    ]
    texts += [
        f"{choice}: its draws are the same, because {len(task.pool):,} rows of the pool are not more than sample"
        for choice in sweep.spec.select
        if isinstance(choice.base, SharedDiversity) and choice.base.sample >= len(task.pool)
    ]
    sharing = (planned.group.sharing for planned in sweep.plan.groups)
    texts += dict.fromkeys(text for text in sharing if text)
    texts += same_prompts(sweep.plan)
    texts += [f"not calibrated: {reason}" for reason in sweep.plan.not_calibrated]
    if not all(choice.shared for choice in sweep.spec.select):
        texts += [*([] if checked else _leaks(task)), *unrelated(sweep.plan)]
    texts += [*_read_in_part(sweep), *_vectors_of_parts(sweep), *_word_rules(sweep)]
    if task.perturbation != NONE:
        texts.append(f"demonstrations are perturbed: {task.perturbation}")
    if task.perturbation.asks_model:
        asked = sum(cell.queries for cell in sweep.plan.cells if cell.task.asked == LABELLED)
        texts.append(
            f"{counted(asked, 'row')} of the pool asked for labels first; tokens are counted with the true labels"
        )
        texts += [
            f"{choice}: uses the true labels, which {task.perturbation} should not need"
            for choice in sweep.spec.select
            if choice.reads_answers
        ]
    if count := task.perturbation.complete:
        shown = counted(count, "complete demonstration")
        texts.append(f"{shown} of the pool, in addition to k, after the demonstrations of each prompt")
    return texts


def _held_out_order(sweep: Sweep) -> list[str]:
    """Notes on selections and orders by the train file, if a holdout has shuffled its rows."""
    spec, origin = sweep.task.data.spec, sweep.task.data.origin
    of_hub = spec.data.hub is not None and spec.data.hub.holdout is not None and not origin.startswith("folder ")
    if spec.pool.file is not None or not (spec.data.holdout or of_hub):
        return []
    by_file = [f"--select {choice}" for choice in sweep.spec.select if isinstance(choice.base, First)]
    by_file += [f"--order {order}" for order in sweep.spec.order or () if isinstance(order, InPoolOrder)]
    return [f"{one}: the rows that a holdout leaves for train are shuffled, not in the file's order" for one in by_file]


def same_prompts(plan: Plan) -> list[str]:
    """A note for each retrieval curve whose draws share prompts."""
    curves: dict[str, list[CellPlan]] = {}
    for cell in plan.cells:
        if cell.problem is None and cell.choice.retrieves and cell.task.asked is None:
            curves.setdefault(f"{cell.spec.select}, {cell.spec.order}", []).append(cell)
    texts = []
    for curve, cells in curves.items():
        same = sum(cell.same_prompts for cell in cells)
        if same:
            later = sum(cell.queries for cell in cells if cell.spec.draw > 0)
            all_same = "; its draws count as one" if same == later else ""
            texts.append(
                f"{curve}: {same:,} of the {counted(later, 'prompt')} of later draws are the same as in an earlier "
                f"draw and answered once{all_same}"
            )
    return texts


def _leaks(task: TokenizedTask) -> list[str]:
    """Notes if the pool contains test examples or near duplicates, which retrieval would select."""
    test, train = task.data.test, task.data.train
    same = len(leaking(test, [train[i] for i in task.pool.rows]))
    near = len(task.near_duplicates)
    of = f"of the {counted(len(test), 'test row')}"
    notes = []
    if same:
        notes.append(f"{same:,} {of} with the same text in the pool: retrieval shows it, with its answer")
    if near:
        notes.append(
            f"{near:,} {of} with a near duplicate in the pool (the same except for case and punctuation, or 4 of 5 "
            "words): for complete cells, summary shows retrieval's score without them"
        )
    return notes


def unrelated(plan: Plan) -> list[str]:
    """A note for each retrieval that adds demonstrations unrelated to their query."""
    texts: dict[SelectorSpec, str] = {}
    for planned in plan.groups:
        choice = planned.group.choice
        if choice.by is None or choice.diverse is not None or choice in texts or planned.group.task.asked is not None:
            continue
        counts = [(cell.spec.k, *_unrelated_of(planned.group, cell.spec.k)) for cell in planned.runnable]
        shares = [f"{n:,} of {total:,} at k={k} ({n / total:.0%})" for k, n, total in counts if n]
        if shares:
            drawn = "demonstrations drawn at random because no others of the pool are related to the query"
            said = ", ".join(shares) if len(shares) <= SHARES else f"{shares[0]} to {shares[-1]}"
            texts[choice] = f"{choice}: {drawn}: {said}"
    return list(texts.values())


def _unrelated_of(group: PromptGroup, k: int) -> tuple[int, int]:
    """The number of the queries' own demonstrations that are unrelated to their query, and the total."""
    choice, pool = group.choice, group.task.pool
    assert choice.by is not None, f"{choice} does not retrieve"
    sink = 1 if choice.retrieves and group.pattern.reuses and group.pattern.sink else 0
    own = group.demonstrations(k)[:, choice.shared_count(k, len(pool.labels)) + sink : k]
    related = [r.related[pool.places(row)] for r, row in zip(pool.similarity.ranked(choice.by), own, strict=True)]
    return own.size - int(np.sum(related)), own.size


def _read_in_part(sweep: Sweep) -> list[str]:
    """Notes if encoders of selectors truncate texts or do not support their script."""
    similarity, notes = sweep.task.pool.similarity, []
    if sweep.spec.embeds:
        notes += similarity.sentence_reading.notes(similarity.sentence_encoder.name, "embeds")
    if sweep.spec.compares_tokens:
        encoder = f"bertscore: {similarity.bertscore_encoder.name}"
        notes += similarity.bertscore_reading.notes(encoder, "compares")
        if mostly_other_scripts(similarity.demonstrations):
            notes.append(f"{encoder} is an encoder of English, and the demonstrations are in another script")
    return notes


def _vectors_of_parts(sweep: Sweep) -> list[str]:
    """A note if texts that are read as vectors exceed the window of their encoder."""
    task, source = sweep.task, sweep.model.source
    settings = vector_settings_of(source)
    if settings is None or not any(pattern.reads_vectors for pattern in sweep.spec.attention):
        return []
    read = [passage for row in task.data.test for passage in row.passages]
    if task.data.spec.data.passages is None:
        read = [task.vector_text(task.data.train[i]) for i in task.pool.rows]
    encoder = VectorEncoder.of_checkpoint(source, settings)
    return encoder.reading(list(dict.fromkeys(read))).notes(f"vectors: {settings.encoder}", "encodes", hint="")


def _word_rules(sweep: Sweep) -> list[str]:
    """Notes if words are tokenized differently from the reference implementations."""
    task, notes = sweep.task, []
    metrics = zip(task.data.spec.metrics, task.metrics, strict=True)
    if unicode := [name for name, metric in metrics if "score_words" in metric.facts()]:
        notes.append(f"{', '.join(unicode)}: words by Unicode's rules, because of the script of the right answers")
    if sweep.spec.counts_words and task.pool.similarity.unicode_words:
        notes.append("bm25: words keep their marks, and scripts without spaces go by bigrams of characters")
    return notes
