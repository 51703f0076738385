"""The loaders of this package's backends.

A backend's library is imported only when it is needed.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.backends.device import device_name, device_rate, dtype_name
from icl_bench.backends.interface import Backend, BackendLoader
from icl_bench.errors import CellError, UserError
from icl_bench.options import read_pair
from icl_bench.wording import listed_or

if TYPE_CHECKING:
    from icl_bench.backends.servers.interface import Interface
    from icl_bench.backends.servers.providers import Connection, Provider
    from icl_bench.backends.servers.scoring import How
    from icl_bench.backends.servers.thinking import Thinking
    from icl_bench.models.registry import Model

OLDEST_VLLM = (0, 31)
"""Earlier versions do not escape the line break that ends an answer in the grammar of a choice, so
no grammar engine can read it (vllm-project/vllm#48115). Before 0.28, ``head_dtype`` is ignored too,
so logits are rounded to 16 bits."""


class TransformersLoader(BackendLoader):
    """PyTorch on the CPU or CUDA; packs queries over one prefix cache."""

    name = "transformers"
    options = frozenset({"device", "pack"})
    patterns = True
    exact = True
    samples = True
    skips_unread = True

    def check(self) -> None:
        """See ``BackendLoader``: checks that the device exists."""
        if self.spec.device is not None:
            device_name(self.spec.device)

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``."""
        return {"backend": self.name, "dtype": dtype_here(self.spec.dtype, self.spec.device)}

    def load(self, model: Model, tokenizer: Any, room: int) -> Backend:  # noqa: ARG002
        """See ``BackendLoader``."""
        from icl_bench.backends.transformers.backend import TransformersBackend

        backend = TransformersBackend.load(
            model.source,
            tokenizer,
            revision=model.revision,
            dtype=self.spec.dtype,
            device=self.spec.device,
            pack_rows=self.spec.pack,
            positions=model.positions,
        )
        self.rate()  # measure it with PyTorch, and cache it for plans
        return backend

    def on_cpu(self) -> bool:
        """See ``BackendLoader``."""
        return device_name(self.spec.device) == "cpu"

    def rate(self) -> float:
        """See ``BackendLoader``."""
        return rate_here(self.spec.dtype, self.spec.device)


class VllmLoader(BackendLoader):
    """vLLM on CUDA or the CPU; demonstrations stay in its prefix cache.

    Costs assume that its cache holds the whole prefix for each query (and the whole query for each token of scored
    labels), although it holds only whole blocks. They leave out the token that is generated when the prefix is
    computed.
    """

    name = "vllm"
    exact = True
    samples = True
    options = frozenset({"tensor_parallel", "max_model_len", "gpu_memory", "quantization", "kv_cache_dtype"})

    def check_installed(self) -> None:
        """See ``BackendLoader``."""
        if (problem := vllm_problem()) is not None:
            raise UserError(f"--backend vllm: {problem}")

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``."""
        named = {"backend": self.name, "dtype": dtype_here(self.spec.dtype)}
        if self.spec.quantization:
            named["quantization"] = self.spec.quantization
        if self.spec.kv_cache_dtype:
            named["kv_cache_dtype"] = self.spec.kv_cache_dtype
        return named

    def load(self, model: Model, tokenizer: Any, room: int) -> Backend:
        """See ``BackendLoader``."""
        from icl_bench.backends.vllm.backend import VllmBackend

        return VllmBackend(
            model.source,
            tokenizer,
            identity=self.identity(),
            max_model_len=self.spec.max_model_len or room,
            tensor_parallel=self.spec.tensor_parallel or 1,
            gpu_memory=self.spec.gpu_memory,
            quantization=self.spec.quantization,
            kv_cache_dtype=self.spec.kv_cache_dtype,
        )

    def rate(self) -> float:
        """See ``BackendLoader``."""
        return rate_here(self.spec.dtype)


@dataclass(frozen=True)
class OpenAILoader(BackendLoader):
    """A server with OpenAI's interface, over the network, without a constraint."""

    name = "openai"
    options = frozenset({"base_url", "endpoint", "concurrency", "hold", "server_arg", "thinking", "on_model_change"})
    constrained = False
    exact = True
    samples = True
    spends = True
    most_stops: ClassVar[int | None] = 4
    needs_tokenizer_name = True
    package: ClassVar[str] = "openai"
    """The Python package of its client."""
    scores: How | None = None
    """How the server scores every label; None if not requested."""

    @property
    def _provider(self) -> Provider:
        from icl_bench.backends.servers.providers import PROVIDERS

        return PROVIDERS[self.name]

    @property
    def _address(self) -> str:
        return self._provider.where(self.spec.base_url)

    @property
    def _interface(self) -> Interface:
        """The interface. Chat prompts are sent as messages."""
        asked = self.spec.endpoint or ("chat" if self.spec.chat else "completions")
        return self._provider.interface(self._address, asked)

    @property
    def _connection(self) -> Connection:
        from icl_bench.backends.servers.providers import Connection

        return Connection(self._address, self._provider.secret(), self._provider.key)

    @property
    def _thinking(self) -> Thinking | None:
        from icl_bench.backends.servers.thinking import Thinking

        return None if self.spec.thinking is None else Thinking.parse(self.spec.thinking)

    def check_options(self) -> None:
        """See ``BackendLoader``."""
        if self.spec.dtype != "auto":
            raise UserError(f"--dtype: set by the server, with --backend {self.name} it cannot be chosen")
        interface, hold = self._interface, self.spec.hold
        if self.spec.chat and not interface.chat:
            raise UserError("--endpoint completions: has no messages; leave out one of the two")
        if self.spec.thinking is not None and not interface.chat:
            raise UserError("--thinking: completions do not think; add --endpoint chat, or --chat")
        if hold not in (None, "auto", *interface.holds):
            raise UserError(
                f"--hold {hold}: --backend {self.name} with {interface.name} has {listed_or(interface.holds)}"
            )
        for name in sorted(interface.named):
            if self._arguments.get(name, "") is None:
                raise UserError(f"--server-arg {name}=: --backend {self.name} needs it; give a value, or leave it out")

    def check(self) -> None:
        """See ``BackendLoader``: checks the package and the key."""
        if importlib.util.find_spec(self.package) is None:
            raise UserError(
                f"--backend {self.name}: the {self.package} package is missing; pip install 'icl-bench[{self.package}]'"
            )
        self._provider.secret()

    def check_budget(self) -> None:
        """See ``BackendLoader``."""
        given = {name: self._arguments[name] for name in self._interface.limits if name in self._arguments}
        if given and not any(type(size) is int for size in given.values()):
            raise UserError(
                f"--server-arg {next(iter(given))}=: a budget needs the limit of an answer's tokens; leave one of the "
                "two out"
            )

    def check_batches(self, *, to_run: bool) -> None:
        """See ``BackendLoader``: asks the server for its list of batches."""
        if self._interface.batches is None:
            super().check_batches(to_run=to_run)
        if to_run:
            from icl_bench.backends.servers.batches import check_batches

            check_batches(self._interface, self._connection)

    def check_samples(self, temperature: float) -> None:
        """See ``BackendLoader``."""
        for name in ("temperature", "seed"):
            if name in self._arguments:
                raise UserError(f"--server-arg {name}: is set by --samples and --temperature; leave it out")
        thinking = self._thinking
        if not self._interface.thinks_at_zero and thinking and thinking.how != "off" and temperature != 1:
            raise UserError(
                f"--temperature {temperature:g}: Anthropic's models can think only at temperature 1; "
                "take --temperature 1, or --thinking off"
            )

    def check_exact(self) -> None:
        """See ``BackendLoader``."""
        from icl_bench.backends.servers.scoring import refused_arguments

        for name, value in (("hold", self.spec.hold), ("thinking", self.spec.thinking)):
            if value is not None:
                raise UserError(
                    f"--{name} {value}: --score exact compares all labels, no answer is written; leave one out"
                )
        if self.spec.endpoint not in (None, "completions"):
            raise UserError(
                f"--endpoint {self.spec.endpoint}: --score exact asks for completions, also of chat prompts (--chat); "
                "leave --endpoint out"
            )
        for name in refused_arguments(self._arguments):
            raise UserError(f"--server-arg {name}: is set by --score exact")

    def settled(self, model: str, *, exact: bool = False) -> BackendLoader:
        """See ``BackendLoader``: resolves ``auto`` options by requests to the server."""
        if exact:
            from icl_bench.backends.servers.scoring import found_scores

            return replace(self, scores=found_scores(model, self._connection))
        if self.spec.hold != "auto":
            return self
        from icl_bench.backends.servers.models import found_hold

        hold = found_hold(model, self._interface, self._connection)
        return replace(self, spec=self.spec.model_copy(update={"hold": hold}))

    def window(self, model: str) -> int | None:
        """See ``BackendLoader``: read from the server's list of models."""
        from icl_bench.backends.servers.models import listed_models

        if importlib.util.find_spec(self.package) is None:
            return None
        try:
            listed = listed_models(self._interface, self._connection, seconds=20, retries=0).get(model)
        except (CellError, UserError):
            return None  # plan needs no key; the first cell of a run reports the problem
        return None if listed is None else listed.window

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``. The server's address distinguishes models with the same name."""
        named = {"backend": self.name, "server": self._address, "endpoint": self._interface.name}
        if self.spec.hold is not None:
            named["held"] = self.spec.hold
        if self.spec.thinking is not None:
            named["thinking"] = self.spec.thinking
        if self._arguments:
            named["server_arguments"] = json.dumps(self._arguments, sort_keys=True)
        return named

    @property
    def _arguments(self) -> dict[str, Any]:
        """Arguments of requests by name; None for one that is left out."""
        pairs = [(*read_pair(text, "--server-arg"), text) for text in self.spec.server_arg]
        return {name: None if text.endswith("=") else value for name, value, text in pairs}

    def load(self, model: Model, tokenizer: Any, room: int) -> Backend:  # noqa: ARG002
        """See ``BackendLoader``."""
        from icl_bench.backends.servers.backend import ServerBackend
        from icl_bench.backends.servers.scoring import check_tokenizer

        assert self.spec.hold != "auto", "settled before"
        if self.scores is not None:
            check_tokenizer(model.requested_name, self._connection, tokenizer)
        return ServerBackend(
            model.requested_name,
            self._interface,
            self._connection,
            concurrency=self.spec.concurrency or 8,
            hold=self.spec.hold,
            thinking=self._thinking,
            arguments=self._arguments,
            on_model_change=self.spec.on_model_change,
            scores=self.scores,
            identity=self.identity(),
        )


class AnthropicLoader(OpenAILoader):
    """Anthropic's Messages."""

    name = "anthropic"
    options = OpenAILoader.options - {"endpoint"}
    exact = False
    most_stops = None
    package = "anthropic"


class GoogleLoader(OpenAILoader):
    """Google's models through its OpenAI-compatible chat completions."""

    name = "google"
    options = OpenAILoader.options - {"endpoint"}
    exact = False


def vllm_problem() -> str | None:
    """Why vLLM cannot be used (missing or too old) and what to do, or None."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed; pip install 'icl-bench[vllm]'"
    try:
        installed = version("vllm")
    except PackageNotFoundError:  # on the path, but not installed
        return None
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) >= OLDEST_VLLM:
        return None
    oldest = ".".join(map(str, OLDEST_VLLM))
    return (
        f"vLLM {installed} is too old: before {oldest} it fails on answers that end with a line break, "
        "before 0.28 it rounds logits to 16 bits (head_dtype is ignored); "
        "pip install --upgrade 'icl-bench[vllm]'"
    )


def dtype_here(requested: str, device: str | None = None) -> str:
    """The name of the dtype on a device of this machine."""
    return dtype_name(requested, device_name(device))


def rate_here(dtype: str, device: str | None = None) -> float:
    """Operations per second of a device of this machine."""
    return device_rate(device_name(device), dtype_here(dtype, device))
