"""A classification head on a language model, initialised from the language model's own head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icl_bench.errors import CellError
from icl_bench.models.config import read_config
from icl_bench.quiet_libraries import spare_imports
from icl_bench.sweep.tokenized_task import TokenizedTask

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def first_tokens(task: TokenizedTask) -> list[int]:
    """The first token of each label's answer, ``(labels,)``."""
    return [ids[0] for ids in task.encoder.answers(task.data.labels)]


def sharing_rows(tokens: Sequence[int]) -> int:
    """Number of labels that share their first token with another label, and so start from the same row."""
    return sum(count for count in Counter(tokens).values() if count > 1)


def load_classifier(
    source: str, labels: int, tokens: Sequence[int] | None, pad_token: int, dtype: str
) -> PreTrainedModel:
    """Load a decoder with a head over the labels at its last token.

    With ``tokens`` the head's rows are the language model head's rows of these tokens, so its initial
    logits are the language model's (Bertsch et al. 2025, section 3.3 and figure 15); without, they
    are random. Raises ``CellError`` for a model without such a head, or with a bias or capped logits
    (which rows do not include), and ``UserError`` for a damaged or incomplete checkpoint.
    """
    import torch

    spare_imports()
    from transformers import AutoModelForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as FAMILIES

    from icl_bench.backends.transformers.checkpoint import load_network
    from icl_bench.training.sparse_attention import as_adapted

    kind = getattr(torch, dtype)
    family = read_config(source).family
    if family not in FAMILIES:
        raise CellError(f"{source}: {family} has no classification head in transformers")
    rows = None if tokens is None else _head_rows(source, tokens, kind)
    model = load_network(AutoModelForSequenceClassification, source, new_head=True, num_labels=labels, dtype=kind)
    text = model.config.get_text_config()
    model.config.pad_token_id = text.pad_token_id = pad_token
    model.config.problem_type = "single_label_classification"
    if rows is not None:
        with torch.no_grad():
            model.score.weight.copy_(rows)
    return as_adapted(model, source)  # type: ignore[no-any-return]


def _head_rows(source: str, tokens: Sequence[int], kind: torch.dtype) -> torch.Tensor:
    """Rows of the language model's head, ``(tokens, hidden)``; the model itself is released.

    Raises ``CellError`` if the head does more than multiply by its rows.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from icl_bench.backends.transformers.checkpoint import load_network

    language = load_network(AutoModelForCausalLM, source, dtype=kind)
    output = language.get_output_embeddings()
    if output is None or getattr(output, "bias", None) is not None:
        raise CellError(f"{source}: its language-model head has a bias, or is missing; use --head random")
    if getattr(language.config.get_text_config(), "final_logit_softcapping", None):
        raise CellError(f"{source}: its language-model head caps its logits; use --head random")
    return output.weight.detach()[torch.tensor(list(tokens))]  # type: ignore[no-any-return]


def pad_token(task: TokenizedTask) -> int:
    """A token for padding: the tokenizer's padding token, else its end of text."""
    tokenizer: Any = task.tokenizer
    for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
        token = getattr(tokenizer, name, None)
        if token is not None:
            return int(token)
    raise CellError("the tokenizer has no token for padding")
