"""The questions that findings answer, in the order in which ``summary`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

QUESTIONS: Mapping[str, Sequence[str]] = {
    "What scores best?": ("races", "best_points", "group_means", "models", "training_gain", "forecast"),
    "What do demonstrations gain, and why?": (
        "demonstrations_gain",
        "perturbations",
        "shown_labels",
        "learning_ratio",
        "label_spaces",
        "copying",
    ),
    "Which demonstrations, in which order?": (
        "retrieval_gain",
        "near_duplicates",
        "retrieval_order",
        "order_sensitivity",
        "sorting_penalty",
        "noise_floor",
    ),
    "Does another prompt, attention or way of answering help?": (
        "chat_gain",
        "calibration_gain",
        "self_consistency",
        "attention_patterns",
        "truncated_answers",
    ),
    "Can the probabilities be trusted?": ("calibration_error", "probability_scores"),
    "What does it cost?": ("cost", "break_even", "cascades"),
    "Where do the numbers come from, and do others find them?": ("replication", "unmatched_imports", "provenance"),
}
"""Question -> names of its findings, in :data:`icl_bench.registry.FINDINGS`; the most important first."""

OTHERS = "Other findings"
"""Heading of findings that answer none of the questions, such as those of other packages."""


def by_question(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Each question with its findings, then the other findings by name."""
    left = set(names)
    for question, answers in QUESTIONS.items():
        if found := [name for name in answers if name in left]:
            yield question, found
            left -= {*found}
    if left:
        yield OTHERS, sorted(left)
