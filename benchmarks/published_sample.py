"""Makes the sample of the published predictions of Bertsch et al. 2025 that comes with the package.

    python benchmarks/published_sample.py predictions.parquet

All ten draws, every k and every test row; of the three reorderings of each draw the first three draws. Test ids, right
labels and predicted ones, no texts. Rows are sorted so that they pack well. The license is beside it
(icl_bench/samples/LICENSE).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from icl_bench.report.notebook import SAMPLE

REORDERED_DRAWS = 3

SORTED = ("task", "model", "select", "order", "test_id", "k", "draw")


def main() -> None:
    """Read the whole file, write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("published", type=Path, help="the whole file, as the study published it")
    whole = pq.read_table(parser.parse_args().published)
    reordered = pc.starts_with(whole["order"], "shuffled:")
    sample = whole.filter(pc.or_(pc.invert(reordered), pc.less(whole["draw"], REORDERED_DRAWS)))
    sample = sample.sort_by([(name, "ascending") for name in SORTED]).replace_schema_metadata()
    pq.write_table(sample, SAMPLE, compression="zstd", compression_level=19)
    size = SAMPLE.stat().st_size
    print(f"{SAMPLE}: {len(sample):,} of {len(whole):,} predictions, {size:,} bytes")


if __name__ == "__main__":
    main()
