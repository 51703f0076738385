"""Makes the sample of the published predictions of Bertsch et al. 2025 that comes with the package.

    python benchmarks/published_sample.py predictions.parquet

Of each setting the first three of its ten draws, every k and every test row; test ids, right labels
and predicted ones, no texts. The license is beside it (icl_bench/samples/LICENSE).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from icl_bench.report.notebook import SAMPLE

DRAWS = 3


def main() -> None:
    """Read the whole file, write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("published", type=Path, help="the whole file, as the study published it")
    whole = pq.read_table(parser.parse_args().published)
    sample = whole.filter(pc.less(whole["draw"], DRAWS))
    pq.write_table(sample, SAMPLE, compression="zstd", compression_level=19)
    size = SAMPLE.stat().st_size
    print(f"{SAMPLE}: {len(sample):,} of {len(whole):,} predictions, {size:,} bytes")


if __name__ == "__main__":
    main()
