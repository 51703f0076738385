"""Keeps other libraries' progress bars and hints out of our output, and loads less of them."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings


def hush_libraries() -> None:
    """Call this before they are imported: that is when they read it. Transformers heeds it later, too."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for library in ("TRANSFORMERS", "HF_HUB", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module="transformers|torch|datasets|bert_score|tqdm")
    if (transformers := sys.modules.get("transformers")) is not None:  # it has read its variables
        transformers.utils.logging.disable_progress_bar()


def spare_imports() -> None:
    """Call this before models of transformers are imported: saves a fifth of a model's start.

    With every decoder it imports scikit-learn (one way to decode) and ``scipy.optimize`` (losses of
    object detection), where they are there. It asks once whether they are; here they are hidden
    while it asks, and are there for everybody else.
    """
    names = ("sklearn", "scipy")
    there = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # None: not to be imported
    try:
        from transformers.utils.import_utils import is_scipy_available, is_sklearn_available

        is_sklearn_available()
        is_scipy_available()
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(there)


def load_late(package: str, part: str) -> None:
    """Make a part of a package there at once, but load it when something of it is first used."""
    name = f"{package}.{part}"
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:  # this version of the package has none
        return
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    setattr(sys.modules[package], part, module)
    loader.exec_module(module)
