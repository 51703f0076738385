"""What a run asks of a backend: token ids in, answers out, a pack at a time.

A backend of another package is one file: a :class:`BackendLoader`, entered in
:data:`icl_bench.registry.BACKENDS`, and the :class:`Backend` that it loads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.backends.spec import BackendSpec
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet

if TYPE_CHECKING:
    from icl_bench.models.registry import Model


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest allowed token at each step until one label is left."""

    automaton: LabelAutomaton


@dataclass(frozen=True)
class Exact:
    """Score every label by the sum of its tokens' log-probabilities; the largest wins."""

    trie: LabelTrie
    sizes: tuple[int, ...] | None = None
    """What each label's sum is divided by before they are compared; None for nothing."""


@dataclass(frozen=True)
class Free:
    """Generate greedily, without constraint, up to one of ``stops`` or ``max_tokens`` tokens."""

    stops: tuple[str, ...]
    max_tokens: int
    of_labels: bool = False
    """Whether ``max_tokens`` is the length of a label in the tokens of the prompt's tokenizer."""

    def before_stop(self, text: str) -> str | None:
        """The text before the first stop that stands in it; None where none does.

        Asked after each token: of stops that overlap, the one that is whole first ends the text.
        """
        found = [text.find(stop) for stop in self.stops]
        at = min((place for place in found if place >= 0), default=None)
        return None if at is None else text[:at]


Decoding = Greedy | Exact | Free
"""How the answer to one prompt is found. Prompts that are answered alike have the same object."""


@dataclass(frozen=True)
class Answer:
    """What a backend says to one prompt."""

    index: int
    """Which prompt of the set."""
    cached_tokens: int
    """Prompt tokens that were not computed for this answer but shared or taken from a cache."""
    answer_tokens: int
    """Tokens that were decided one by one (0 where labels were scored)."""
    label: int | None = None
    """Which answer of the constraint; None for free text."""
    text: str | None = None
    """The generated text before the stop; None under a constraint."""
    truncated: bool | None = None
    """Whether the text ends where no more tokens were allowed; None under a constraint."""
    probability: float | None = None
    """Probability of the answer with its end, given the prompt (exact scoring only)."""
    margin: float | None = None
    """``probability`` minus that of the likeliest other label: below 0 where the answer was chosen
    by sums that were divided (``Exact.sizes``), and another is likelier."""
    label_mass: float | None = None
    """Probability of all labels together: what is left of 1 is on text that is no label."""


@dataclass
class Counters:
    """Work done since the backend was loaded."""

    prefix_tokens: int = 0
    """Prompt tokens computed once and shared."""
    own_tokens: int = 0
    """Prompt tokens computed for one query alone."""
    answer_tokens: int = 0
    """Answer tokens fed back to choose the next."""
    seconds: float = 0.0
    prefix_seconds: float = 0.0
    """Of ``seconds``, those in which shared tokens were computed."""

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
        """Most bytes of keys and values that were kept while the last prompts were answered; None
        where the backend does not say.
        """

    def identity(self) -> dict[str, str]:
        """What of it decides the answers: its name, the dtype, ..."""
        ...

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """Answer the prompts whose indices are in ``todo``, a pack at a time, in any order.

        ``decodings[i]`` says how prompt ``i`` is answered: there is one for each prompt of the set.
        Calls whose prefixes extend one another should follow each other: the backend keeps what it
        has computed. ``reserve`` is the longest prefix (tokens) that will follow. ``pattern`` says
        which tokens see which; a backend that has only ``full`` is not asked for another.

        Raises ``CellError`` where this cell cannot be computed, for example for lack of memory.
        """
        ...


@dataclass(frozen=True)
class BackendLoader(ABC):
    """A backend before it is loaded: what may be asked of it, and what it will be called.

    What decides its answers goes into a cell's hash, so that is known before anything is loaded.
    Making a loader imports nothing of the backend's library and checks nothing.
    """

    spec: BackendSpec

    name: ClassVar[str]
    """As in ``--backend`` and in the registry."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of ``BackendSpec`` that it reads beside ``dtype``; others must not be set."""
    patterns: ClassVar[bool] = False
    """Whether it computes attention patterns other than ``full``."""
    constrained: ClassVar[bool] = True
    """Whether it holds answers to the labels (``Greedy``); else it is asked for ``Free`` alone."""
    exact: ClassVar[bool] = False
    """Whether it scores every label (``Exact``)."""
    most_stops: ClassVar[int | None] = None
    """How many texts may end a free answer, where there is a limit."""
    needs_tokenizer_name: ClassVar[bool] = False
    """Whether the model's files are not here, so that a tokenizer must be named to count tokens."""

    def check_installed(self) -> None:
        """Raise ``UserError`` where a package is missing."""
        return

    def check(self) -> None:
        """Raise ``UserError`` for what else can be told without loading: a missing key."""
        return

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """What of it decides the answers, ``backend`` first; equals the loaded backend's."""

    @abstractmethod
    def load(self, model: Model, tokenizer: Any, room: int) -> Backend:
        """Load the model, or make the connection. ``room`` is the tokens of the longest prompt
        with its answer. Raises ``UserError`` or ``CellError``.
        """

    def rate(self) -> float | None:
        """Operations a second that this machine computes; None where another one computes."""
        return None
