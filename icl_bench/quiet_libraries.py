"""Settings of other libraries: no progress bars and hints in the output, delayed imports, short waits of threads."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings

SPINS = 5000
"""How often a thread of GNU OpenMP checks for work before it sleeps (``GOMP_SPINCOUNT``). With the default of 300,000 a
thread that waits for another one keeps its core busy for milliseconds, and two commands on the same cores wait for each
other most of the time (docs/speed.md)."""


def hush_libraries() -> None:
    """Set environment variables that libraries read on import. Call this before importing them. For transformers it
    also works later.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TQDM_DISABLE", "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for library in ("TRANSFORMERS", "HF_HUB", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module="transformers|torch|datasets|bert_score|tqdm")
    if (transformers := sys.modules.get("transformers")) is not None:  # it has already read its variables
        transformers.utils.logging.disable_progress_bar()


def spare_imports() -> None:
    """Call this before importing models of transformers; it saves a fifth of a model's start.

    With every decoder, transformers imports scikit-learn (for one kind of decoding) and ``scipy.optimize`` (for losses
    of object detection), if they are installed. It checks this once. They are hidden during this check, and available
    to everything else.
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
    """Add a module to a package immediately, but load it on first use."""
    name = f"{package}.{part}"
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:  # this version of the package does not have it
        return
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    setattr(sys.modules[package], part, module)
    loader.exec_module(module)
