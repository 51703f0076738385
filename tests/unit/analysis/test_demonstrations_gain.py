"""What demonstrations gain over the prompt without any."""

from __future__ import annotations

import numpy as np
import pytest
from support.predictions import answers, frame, scored

from icl_bench.analysis.findings.comparisons import demonstrations_gain
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.zero_shot import ZERO_SHOT
from icl_bench.results.facts import Facts


def test_every_curve_is_compared_with_the_one_prompt_without_demonstrations() -> None:
    rng = np.random.default_rng(0)
    bare, few, many = answers(rng, (1, 1, 100), 0.5)[0], *(answers(rng, (1, 5, 100), a)[0] for a in (0.3, 0.9))
    retrieved = answers(rng, (1, 1, 100), 0.8)[0]
    rows = frame(
        scored(bare, k=0),
        scored(few, k=1),
        scored(many, k=50),
        scored(retrieved, k=50, select="bm25", order="relevance"),
    )
    found = demonstrations_gain(rows)
    assert found[["select", "k"]].to_numpy().tolist() == [["bm25", 50], ["random", 1], ["random", 50]]
    gains = [retrieved.mean() - bare.mean(), few.mean() - bare.mean(), many.mean() - bare.mean()]
    assert found["difference"].tolist() == pytest.approx(gains)
    assert found["advice"].tolist() == ["bm25", ZERO_SHOT, "random"]
    assert found[["rows", "draws", "base_draws", "left_out"]].to_numpy().tolist() == [
        [100, 1, 1, 0],
        [100, 5, 1, 0],
        [100, 5, 1, 0],
    ]
    low, high, p = judge([contrast(retrieved, bare, False)])
    assert (found["ci_low"][0], found["ci_high"][0], found["p"][0]) == (low[0], high[0], p[0])


def test_one_draw_of_demonstrations_is_no_gain_of_demonstrations() -> None:
    rng = np.random.default_rng(0)
    rows = frame(scored(answers(rng, (1, 1, 100), 0.2)[0], k=0), scored(answers(rng, (1, 1, 100), 0.9)[0], k=5))
    (found,) = demonstrations_gain(rows).to_dict("records")
    assert found["withheld"] == "one draw"
    assert np.isnan(found["p"])


def test_thoughts_off_and_on_have_a_base_of_their_own_each() -> None:
    """A reasoning model run twice: its two settings are two variants."""
    rng = np.random.default_rng(1)
    sides = {v: (answers(rng, (1, 1, 200), a)[0], answers(rng, (1, 3, 200), b)[0]) for v, a, b in
             (("off", 0.3, 0.8), ("on", 0.8, 0.5))}  # fmt: skip
    rows = frame(*(part for v, (bare, shown) in sides.items()
                   for part in (scored(bare, k=0, variant=v), scored(shown, k=9, variant=v))))  # fmt: skip
    facts = {v: Facts.model_validate({"backend": "openai", "thinking": v}) for v in sides}
    found = demonstrations_gain(rows, facts).set_index("variant")
    for variant, (bare, shown) in sides.items():
        assert found.loc[variant, "difference"] == pytest.approx(shown.mean() - bare.mean())
    assert found["advice"].to_dict() == {"off": "random", "on": ZERO_SHOT}


def test_without_the_prompt_of_no_demonstrations_there_is_no_row() -> None:
    rng = np.random.default_rng(0)
    assert demonstrations_gain(scored(answers(rng, (1, 3, 100), 0.2)[0], k=5)).empty
    assert demonstrations_gain(scored(answers(rng, (1, 1, 100), 0.2)[0], k=0)).empty
