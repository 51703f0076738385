"""The interface of backends: token ids in, answers out, a pack at a time.

A backend of another package is one file: a :class:`BackendLoader`, registered in
:data:`icl_bench.registry.BACKENDS`, and the :class:`Backend` that it loads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.backends.sampling import Sampling
from icl_bench.backends.spec import BackendSpec
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet

if TYPE_CHECKING:
    from icl_bench.models.registry import Model


@dataclass(frozen=True)
class Greedy:
    """Take or sample the most probable allowed token at each step until one label is left."""

    automaton: LabelAutomaton
    sampling: Sampling | None = None
    """Samples tokens by their probabilities among the allowed ones; None for the most probable."""


@dataclass(frozen=True)
class Exact:
    """Score every label by the sum of its tokens' log-probabilities; the largest wins."""

    trie: LabelTrie
    sizes: tuple[int, ...] | None = None
    """Divisors of the labels' sums before they are compared, or None."""
    every: bool = True
    """Whether every label's score is needed. If not, and without ``sizes``, a backend may leave out labels that
    cannot be among the two most probable: the answer has no ``label_mass`` and no ``scores`` then."""

    @property
    def searches(self) -> bool:
        """Whether labels may be left out."""
        return not self.every and self.sizes is None


@dataclass(frozen=True)
class Free:
    """Generate greedily or by sampling, without constraint, up to one of ``stops`` or ``max_tokens`` tokens."""

    stops: tuple[str, ...]
    max_tokens: int
    of_labels: bool = False
    """Whether the answer is a label, and ``max_tokens`` its length by the prompt's tokenizer."""
    labels: tuple[str, ...] = ()
    """The labels as they follow the prompt, with lead and without ending, for a server that constrains answers to
    labels.
    """
    sampling: Sampling | None = None
    """Samples tokens by their probabilities; None for the most probable."""

    def __post_init__(self) -> None:
        """Refuse an empty stop, which every text begins with."""
        if "" in self.stops:
            raise ValueError("an empty text ends no answer")

    def before_stop(self, text: str) -> str | None:
        """The text before the first stop in it, or None if it has none.

        Called after each token. If stops overlap, the one that is complete first ends the text.
        """
        starts = [text.find(stop) for stop in self.stops]
        first = min((start for start in starts if start >= 0), default=None)
        return None if first is None else text[:first]


Decoding = Greedy | Exact | Free
"""How one prompt is answered. Prompts with equal decodings share an object."""


@dataclass(frozen=True)
class Thought:
    """The text that a model generated before its answer."""

    text: str
    """The text between the prompt and the end mark, as generated."""
    tokens: int
    """Generated tokens of the thought, including those of a generated end mark."""
    truncated: bool
    """Whether it was truncated at its limit."""


@dataclass(frozen=True)
class Answer:
    """A backend's answer to one prompt."""

    index: int
    """The index of the prompt in the set."""
    cached_tokens: int
    """Prompt tokens that were not computed for this answer, but shared or cached."""
    answer_tokens: int
    """Tokens that were generated one by one; 0 if all labels were scored, if some were left out, the number of tree
    nodes whose next tokens were scored.
    """
    label: int | None = None
    """The index of the label; None for free text."""
    text: str | None = None
    """The generated text before the stop; None under a constraint."""
    truncated: bool | None = None
    """Whether the text ended at the token limit; None under a constraint."""
    probability: float | None = None
    """Probability of the answer with its ending, given the prompt (exact scoring only)."""
    margin: float | None = None
    """``probability`` minus that of the most probable other label. Below 0 if the sums were divided (``Exact.sizes``)
    and another label is more probable.
    """
    label_mass: float | None = None
    """Probability of all labels together. The rest is on texts that are not labels."""
    ids: tuple[int, ...] | None = field(default=None, compare=False)
    """The tokens that were generated for ``text`` and a stop after it, without an end token; None if unknown."""
    thought: Thought | None = None
    """The thought before the answer; None without one."""
    raw: str | None = None
    """The whole generated text, if ``text`` may be a part of it (without thoughts)."""
    reason: str | None = None
    """Why there is no answer (refused, filtered, out of tokens); None if there is one."""
    prompt_tokens: int | None = None
    """Tokens of the prompt as a server counts and bills them; None without a server, or if it does not report them."""
    written_tokens: int | None = None
    """Prompt tokens that were written into a server's cache."""
    reasoning_tokens: int | None = None
    """Tokens of thoughts among ``answer_tokens``, as a server counts them."""
    scores: np.ndarray | None = field(default=None, compare=False)
    """Log-probability of each label with its ending, ``(labels,)`` float32 (exact scoring only)."""

    @classmethod
    def of_scores(cls, index: int, scores: np.ndarray, sizes: Sequence[int] | None, cached_tokens: int = 0) -> Answer:
        """The best label of ``(labels,)`` float64 log-probabilities.

        With ``sizes``, the best label has the largest log-probability divided by its size. Probability
        and margin are always of undivided probabilities.
        """
        chances = np.exp(scores)
        best = int((scores if sizes is None else scores / np.array(sizes)).argmax())
        second = float(np.delete(chances, best).max(initial=0.0))
        top = float(chances[best])
        return cls(
            index,
            cached_tokens,
            answer_tokens=0,
            label=best,
            probability=top,
            margin=top - second,
            label_mass=float(chances.sum()),
            scores=scores.astype(np.float32),
        )


@dataclass
class Counters:
    """Work done since the backend was loaded."""

    prefix_tokens: int = 0
    """Prompt tokens computed once and shared."""
    own_tokens: int = 0
    """Prompt tokens computed for one query only."""
    answer_tokens: int = 0
    """Answer tokens fed back to choose the next one."""
    seconds: float = 0.0
    prefix_seconds: float = 0.0
    """The part of ``seconds`` for shared tokens."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user, each once."""
    served: dict[str, str] = field(default_factory=dict)
    """Of a server: the ``model`` and ``host`` that answered (the host after a redirect), how it ``scores``, and
    arguments that it refused (``left_out``).
    """
    packs: Mapping[str, int] = field(default_factory=dict)
    """The largest call of the model so far in this cell (``rows``, ``tokens``), and how many calls are open at
    once (``calls``), where queries are packed."""

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens computed."""
        return self.prefix_tokens + self.own_tokens


class Backend(Protocol):
    """A loaded model that answers prompts."""

    name: str
    counters: Counters

    @property
    def peak_prefix_bytes(self) -> int | None:
        """Peak bytes of cached keys and values for the last prompts; None if unknown."""

    def identity(self) -> dict[str, str]:
        """Settings that its answers depend on: its name, the dtype, ..."""

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """Answer the prompts whose indices are in ``todo``, a pack at a time, in any order.

        A pack may contain answers to prompts outside ``todo`` that were computed with them. They are valid, but not
        required.

        ``decodings[i]`` is how prompt ``i`` is answered; there is one for each prompt of the set.
        Calls whose prefixes extend each other should follow each other, because the backend caches
        the prefix. ``reserve`` is the longest prefix (in tokens) of later calls. ``pattern`` is the
        attention pattern; a backend without ``patterns`` is only called with ``full``.

        Raises ``CellError`` if this cell cannot be computed, for example for lack of memory.
        """


@dataclass(frozen=True)
class BackendLoader(ABC):
    """A backend before it is loaded: what it supports, and its identity.

    The identity is part of a cell's hash, so it is known before anything is loaded. Creating a
    loader does not import the backend's library, and does not check anything.
    """

    spec: BackendSpec

    name: ClassVar[str]
    """Its name in ``--backend`` and in the registry."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of ``BackendSpec`` that it uses in addition to ``dtype``. Others must not be set."""
    patterns: ClassVar[bool] = False
    """Whether it computes attention patterns other than ``full``."""
    constrained: ClassVar[bool] = True
    """Whether it constrains answers to labels (``Greedy``). If false, every decoding is ``Free``."""
    exact: ClassVar[bool] = False
    """Whether it scores every label (``Exact``)."""
    samples: ClassVar[bool] = False
    """Whether it samples answers (``sampling`` of ``Greedy`` and ``Free``)."""
    skips_unread: ClassVar[bool] = False
    """Whether it skips computation that no answer needs: the last layer after its keys and values, except for tokens
    that another is predicted from; logits of tokens that a constraint excludes; repeated beginnings of scored labels.
    If false, costs count whole layers, the whole output head at each generated or scored token (and no other), and each
    beginning of a label again with all its tokens.
    """
    most_stops: ClassVar[int | None] = None
    """The largest number of texts that may end a free answer; None for any number."""
    spends: ClassVar[bool] = False
    """Whether its tokens cost money, and a run may have a budget."""
    needs_tokenizer_name: ClassVar[bool] = False
    """Whether ``--tokenizer`` is needed to count tokens, because the model's files are elsewhere."""

    def check_installed(self) -> None:
        """Raise ``UserError`` if a package is missing."""
        return

    def check_options(self) -> None:
        """Raise ``UserError`` for options that exclude each other."""
        return

    def check(self) -> None:
        """Raise ``UserError`` for other problems that are known before loading, such as a missing key."""
        return

    def check_budget(self) -> None:
        """Raise ``UserError`` for options without which requests have no maximum cost."""
        return

    def check_batches(self, *, to_run: bool) -> None:  # noqa: ARG002 - a server is asked only then
        """Raise ``UserError`` if it takes no requests in batches."""
        raise UserError(f"--batch: is for OpenAI's and Anthropic's interfaces; this is --backend {self.name}")

    def check_samples(self, temperature: float) -> None:
        """Raise ``UserError`` if it does not sample answers, or not at this temperature or with these options."""
        if not self.samples:
            raise UserError(f"--samples: --backend {self.name} does not sample answers (temperature {temperature:g})")

    def check_exact(self) -> None:
        """Raise ``UserError`` for options that exclude scores of every label."""
        return

    def settled(self, model: str, *, exact: bool = False) -> BackendLoader:  # noqa: ARG002 - for servers
        """Return the loader with ``auto`` options resolved for this model, and with ``exact``, the way of scoring.

        Raises ``UserError``.
        """
        return self

    def window(self, model: str) -> int | None:  # noqa: ARG002
        """Tokens of a served model's window; None without a server, or if it does not report one.

        Raises ``UserError``.
        """
        return None

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Settings that its answers depend on, ``backend`` first. Equal to the loaded backend's."""

    @abstractmethod
    def load(self, model: Model, tokenizer: Any, room: int) -> Backend:
        """Load the model, or connect to it. ``room`` is the number of tokens of the longest prompt
        with its answer. Raises ``UserError`` or ``CellError``.
        """

    def on_cpu(self) -> bool:
        """Whether the process that loads the model computes with it, on its own CPU. Then processes forked from it
        share the weights in memory.
        """
        return False

    def rate(self) -> float | None:
        """Operations per second of this machine; None if another machine computes."""
        return None
