"""Chat prompts compared with plain prompts of the same demonstrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.columns import SIGNED_LIMITS, Column
from icl_bench.analysis.draws import by_name
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.findings.comparisons import PRINTED_COMPARISON, SHOWN_COMPARISON
from icl_bench.analysis.statistics.paired import compare
from icl_bench.results.facts import NO_FACTS, UNKNOWN, Facts, FactsOf
from icl_bench.wording import short

if TYPE_CHECKING:
    import pandas as pd

PLAIN = "plain"


def chat_gain(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare every chat format with plain text, at each k.

    ``facts`` are those of each variant. Both sides have the same model, selection, order and attention and agree in all
    other facts. They have the same demonstrations and are paired by test example and draw. ``difference`` is above 0 if
    the conversation is better. The columns are those of :func:`icl_bench.analysis.statistics.paired.compare`, after
    ``chat``, the format (:func:`put`), which ``advice`` names.
    """
    frame = frame.assign(chat=by_name(frame["variant"], lambda name: put(facts.get(name, UNKNOWN))).astype(object))
    return compare(frame, {"chat": PLAIN}, facts=facts, apart=("chat",), about="demonstrations")


def put(facts: Facts) -> str:
    """The format of a variant's prompts: ``plain``, or the style with its other arguments."""
    chat = facts.chat
    if chat is None:
        return PLAIN
    more = [f"{name}={value}" for name, value in chat.arguments.items()]
    if chat.system is not None:
        more.insert(0, f"system: {short(chat.system)}")
    return ", ".join([chat.style, *more])


CHAT_GAIN = Finding(
    "chat_gain",
    lambda context: chat_gain(context.from_zero_shot(context.prompts), facts=context.facts),
    (*SIGNED_LIMITS, Column("chat", "chat")),
    caption="Conversations minus plain prompts",
    shown=f"task model series chat {SHOWN_COMPARISON}",
    printed=Printed(
        "chat: {score} minus that of plain prompts, points", f"task model chat select order {PRINTED_COMPARISON}"
    ),
    section=Section(
        "chat",
        "As a conversation, or as plain text?",
        "Chat prompts",
        "run the same with --chat turns, and without",
        "{Score} with the prompt put as a conversation by the model's own template, minus that of "
        "plain text with the same demonstrations. Above 0: the conversation is better.",
        chart=Chart("difference", by=("task", "model", "curve"), line="chat", difference=True),
        place=65,
    ),
    by_task=ByTask(("chat", "task")),
)
