"""Adapters of a model (LoRA and others of peft), merged with their base once and then used like any model folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import folder_fingerprint
from icl_bench.models.in_memory import IDENTITY, MERGED
from icl_bench.models.made_once import is_whole, made_once
from icl_bench.models.memory import memory_errors_as_user_errors, out_of_memory
from icl_bench.text_files import json_file
from icl_bench.wording import first_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

FROM_ADAPTER = "adapter:"
"""Begins the fingerprint of a merged adapter."""

_OF_MODELS = frozenset({"config.json", "generation_config.json"})
_OF_TRAINING = frozenset({CONFIG, "trainer_state.json", "training_args.json"})


@dataclass(frozen=True)
class Adapter:
    """A folder with an adapter's weights, which modify those of a base model."""

    folder: Path
    base: str
    """Its base according to its config: a hub id or a folder; empty if the config has none."""
    revision: str = ""
    """The revision of a base on the hub according to its config; empty for the newest."""

    @classmethod
    def of(cls, folder: Path) -> Adapter | None:
        """The adapter in a folder; None if the folder has none, or has a complete model. Raises ``UserError``."""
        if not (folder / CONFIG).is_file() or _has_model(folder):
            return None
        try:
            config = json_file(folder / CONFIG)
            base, task = config.get("base_model_name_or_path"), config.get("task_type")
            revision = config.get("revision")
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"model {folder}: its {CONFIG} cannot be read ({first_line(error)})") from None
        if task not in (None, "CAUSAL_LM"):
            raise UserError(
                f"model {folder}: an adapter for {task}; only adapters of a language model (CAUSAL_LM) write answers"
            )
        if not (folder / WEIGHTS).is_file():
            raise UserError(
                f"model {folder}: an adapter without {WEIGHTS}, and pickled weights are never loaded; save it again "
                "with save_pretrained"
            )
        stated = isinstance(revision, str) and revision != "main"
        return cls(folder, base if isinstance(base, str) else "", revision if stated else "")

    def merged(self, base: Path, base_fingerprint: str, *, weights: bool) -> tuple[Path, str]:
        """The folder of the merged model, and its fingerprint, which identifies adapter and base.

        The model is merged on first use; without ``weights``, only its config and tokenizer are written.
        Raises ``UserError``.
        """
        fingerprint = f"{FROM_ADAPTER}{folder_fingerprint(self.folder)}+base:{base_fingerprint}"
        key = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        name = self.folder.resolve().name
        place, planned = (cache_dir() / MERGED / each / name for each in (key, f"{key}-config"))
        if not weights and is_whole(place):
            return place, fingerprint
        target = place if weights else planned

        def write(saved: Path) -> None:
            if weights:
                with memory_errors_as_user_errors(self.folder):
                    self._merge(base, saved)
                (saved / IDENTITY).write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")
            for file in self._copied(base, with_config=not weights):
                shutil.copyfile(file, saved / file.name)

        try:
            return made_once(target, write), fingerprint
        except OSError as error:
            raise UserError(
                f"model {self.folder}: cannot be merged in {target.parent} ({first_line(error)}); set "
                "ICL_BENCH_CACHE to a folder with room for the whole model"
            ) from None

    def _copied(self, base: Path, *, with_config: bool) -> Iterator[Path]:
        """The files other than weights: the adapter's tokenizer if it has one, else its base's."""
        source = self.folder if (self.folder / "tokenizer_config.json").exists() else base
        for file in sorted(source.iterdir()):
            kept = file.suffix in (".json", ".jinja", ".model", ".txt") and not file.name.endswith(".index.json")
            if kept and file.is_file() and file.name not in _OF_MODELS | _OF_TRAINING:
                yield file
        if with_config:
            yield from (base / name for name in sorted(_OF_MODELS) if (base / name).exists())

    def _merge(self, base: Path, saved: Path) -> None:
        """Write the merged weights. Raises ``UserError``, and errors of memory and disks."""
        from icl_bench.quiet_libraries import hush_libraries

        try:
            from peft import PeftModel, get_peft_model_state_dict
        except ImportError:
            raise UserError(
                f"model {self.folder}: an adapter, and peft is missing; pip install 'icl-bench[finetune]'"
            ) from None
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM

        hush_libraries()
        try:
            auto: Any = AutoModelForCausalLM
            network, loading = auto.from_pretrained(
                base, dtype="auto", output_loading_info=True, trust_remote_code=False
            )
            self._fit_vocabulary(network)
            with warnings.catch_warnings(action="ignore"):  # of the trainer's paths, and of keys compared below
                adapted: Any = PeftModel.from_pretrained(network, self.folder)
                known = set(get_peft_model_state_dict(adapted))
            merge = getattr(adapted, "merge_and_unload", None)
        except Exception as error:  # the libraries raise many kinds of errors
            if out_of_memory(error):
                raise
            raise UserError(f"{self._subject(base)} does not fit it ({first_line(error)[:200]}); give --base") from None
        if loading["missing_keys"] or loading["mismatched_keys"]:
            raise UserError(f"{self._subject(base)} lacks weights of its config.json; give --base")
        stored = set(_shapes(self.folder / WEIGHTS))
        if differing := stored ^ known:
            raise UserError(
                f"{self._subject(base)} does not fit it: {min(differing)} is "
                f"{'not in the base' if min(differing) in stored else 'not in the adapter'}; give --base"
            )
        if merge is None:
            raise UserError(f"model {self.folder}: an adapter of a kind that cannot be merged into the weights")
        try:
            with warnings.catch_warnings(action="ignore"):
                merge(safe_merge=True).save_pretrained(saved)
        except SafetensorError as error:  # disk errors
            raise OSError(first_line(error)) from None
        except Exception as error:  # weights that are not a number, or kinds that cannot be merged
            if out_of_memory(error) or isinstance(error, OSError):
                raise
            raise UserError(f"{self._subject(base)} cannot be merged ({first_line(error)[:200]})") from None

    def _subject(self, base: Path) -> str:
        return f"model {self.folder}: an adapter, and its base {base}"

    def _fit_vocabulary(self, network: Any) -> None:
        """Resize the base's vocabulary to that of the adapter's own embeddings, if it stores some."""
        for name, shape in _shapes(self.folder / WEIGHTS).items():
            if "embed" in name and "lora" not in name and len(shape) == 2:
                if shape[0] != network.get_input_embeddings().weight.shape[0]:
                    network.resize_token_embeddings(shape[0], mean_resizing=False)
                return


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as weights:
        return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118


def _has_model(folder: Path) -> bool:
    """Whether a folder has a complete model's config and weights."""
    weights = (file.name for file in folder.glob("*.safetensors"))
    return (folder / "config.json").exists() and any(name != WEIGHTS for name in weights)
