"""Files of a model on the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from icl_bench.errors import NotHereError
from icl_bench.wording import first_line, one_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

HUB_SECONDS = 5.0
"""The time limit for the hub's first response, unless the environment sets a longer one."""

TOKENIZER_FILES = ("*.json", "tokenizer.model", "*.txt")
"""The files of a checkpoint without weights: configs and tokenizer."""


def hub_seconds() -> float:
    """The time limit in seconds: :data:`HUB_SECONDS`, or that of ``HF_HUB_ETAG_TIMEOUT`` if it is set and longer."""
    from huggingface_hub import constants

    return max(HUB_SECONDS, constants.HF_HUB_ETAG_TIMEOUT) if "HF_HUB_ETAG_TIMEOUT" in os.environ else HUB_SECONDS


def fetch(
    hub: str, files: Sequence[str], *, subject: str, hint: str, revision: str | None = None, ignore: Sequence[str] = ()
) -> Path:
    """Download the files that match these patterns. Returns their folder.

    Raises ``NotHereError``, whose message begins with ``subject`` and ends with ``hint``.
    """
    from huggingface_hub import constants, snapshot_download

    silent = None
    if revision is not None and not constants.HF_HUB_OFFLINE:
        # listing a commit is retried for half a minute, listing a branch is not
        silent = unreachable(lambda api: api.model_info(hub, revision=revision, expand=["sha"], timeout=hub_seconds()))
    try:
        folder = snapshot_download(
            hub,
            revision=revision,
            allow_patterns=list(files),
            ignore_patterns=list(ignore) or None,
            local_files_only=silent is not None,
        )
    except Exception as error:  # requests, hub and file errors alike
        reason = silent or first_line(error)
        raise NotHereError(one_line(f"{subject} cannot be downloaded from the hub ({reason}); {hint}")) from None
    return Path(folder)


def unreachable(ask: Callable[[HfApi], object]) -> str | None:
    """Why the hub does not respond to a request, or None if it does. An HTTP error is a response.

    This makes one short request, because the libraries retry for half a minute. The request runs in
    a thread: if packets are dropped, its own timeout starts again for each address of the host.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    seconds = hub_seconds()
    reason: str | None = f"no answer in {seconds:g} s"

    def request() -> None:
        nonlocal reason
        try:
            ask(HfApi())
        except (HfHubHTTPError, ValueError):
            reason = None
        except Exception as error:  # any error of the library and its transports
            reason = f"{type(error).__name__}: {first_line(error)}"
        else:
            reason = None

    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(seconds)
    return reason


def cached_file(hub: str, file: str, revision: str | None = None) -> Path | None:
    """The path of a model's file on this machine; None if it was not downloaded yet."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub, file, revision=revision)
    return Path(path) if isinstance(path, str) else None
