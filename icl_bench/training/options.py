"""The options that long trainings share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from icl_bench.options import TRAINING, Option

OutFolder = Annotated[Path, Option("Folder of the trained model; run takes it as --model.", TRAINING, "DIR")]
