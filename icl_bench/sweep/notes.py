"""Notes on data, pool and selection that a user should read before a run."""

from __future__ import annotations

from icl_bench.demonstrations.perturbations import NONE
from icl_bench.prompts.chat import ChatForm
from icl_bench.sweep.plan import CellPlan, Plan
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import leaking
from icl_bench.wording import counted


def headline(task: TokenizedTask) -> str:
    """Test rows, pool and data of a task, in one line."""
    data = task.data
    return f"{data.spec.name}: {queries_in_words(task)}, pool of {len(task.pool):,} ({data.origin})"


def queries_in_words(task: TokenizedTask) -> str:
    """The queries of each cell, in words."""
    count = len(task.data.test)
    if task.queries == "copied":
        return f"up to {count:,} of the prompt's own demonstrations asked"
    return counted(count, "test example")


def notes(sweep: Sweep) -> list[str]:
    """Notes on data, pool and selection, one a line."""
    task = sweep.task
    texts = list(task.data.notes)
    if isinstance(form := task.encoder.form, ChatForm):
        texts += form.notes()
    if task.pool.dropped:
        share = task.data.spec.pool.drop_longest
        longest = int(task.lengths[task.pool.rows].max())
        texts.append(
            f"{task.pool.dropped:,} train rows longer than {longest} tokens are not in the "
            f"pool (the longest {share:.0%}, pool.drop_longest)"
        )
    texts += [choice.caution for choice in sweep.spec.select if choice.caution]
    texts += [
        f"{choice}: {choice.fewest(count):,} demonstrations, {choice.each} of each of {count:,} "
        "labels, whatever --k says"
        for choice in sweep.spec.select
        if choice.says_k and (count := len(task.pool.labels))
    ]
    sharing = (planned.group.sharing for planned in sweep.plan.groups)
    texts += dict.fromkeys(text for text in sharing if text)
    texts += same_prompts(sweep.plan)
    texts += [f"not calibrated: {reason}" for reason in sweep.plan.not_calibrated]
    if not all(choice.shared for choice in sweep.spec.select):
        texts += _leaks(task)
    if sweep.spec.embeds:
        texts += _cut(task)
    if task.perturbation != NONE:
        texts.append(f"demonstrations are not shown as they are: {task.perturbation}")
    return texts


def same_prompts(plan: Plan) -> list[str]:
    """A note on each curve of retrieval whose draws have prompts in common."""
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
    """Notes if the pool contains test examples, or near duplicates, which retrieval would show."""
    test, train = task.data.test, task.data.train
    same = len(leaking(test, [train[i] for i in task.pool.rows]))
    near = len(task.near_duplicates)
    of = f"of the {counted(len(test), 'test example')}"
    notes = []
    if same:
        notes.append(f"{same:,} {of} with the same text in the pool: retrieval shows it, answer included")
    if near:
        notes.append(
            f"{near:,} {of} with a near duplicate in the pool (the same but for case and punctuation, or 4 of 5 "
            "words): summary shows retrieval's score without them"
        )
    return notes


def _cut(task: TokenizedTask) -> list[str]:
    """A note if the sentence encoder truncates texts."""
    count, window = task.pool.similarity.cut
    encoder = task.pool.similarity.sentence_encoder.name
    read = f"the first {window:,} tokens of {counted(count, 'text')}"
    return [f"{encoder} embeds {read}, not the rest"] if count else []
