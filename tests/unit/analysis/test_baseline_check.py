"""A check against a baseline: what fails it, what is refused, and what is said."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fakes import FREE_TEXT, FakeBackend, plan

from icl_bench.analysis.baseline_check import check_results, read_baseline
from icl_bench.backends.interface import Answer, Decoding, Free
from icl_bench.cli import main
from icl_bench.errors import UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import EXPORT_META
from icl_bench.results.store import Store
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.runner import Runner

ROWS = 60


class Able(FakeBackend):
    """Answers this share of the queries right, the same ones each time."""

    def __init__(self, made: Plan, share: float, dtype: str = "float32") -> None:
        super().__init__(pack=ROWS)
        self._data, self._share, self._dtype = made.task.data, share, dtype

    def identity(self) -> dict[str, str]:
        return {"backend": "fake", "dtype": self._dtype}

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        gold, cached = self._data.test[index].answer, len(prompts.prefix)
        digest = hashlib.sha256(str(prompts.ids(index)).encode()).digest()
        right = digest[0] / 256 < self._share
        if isinstance(decoding, Free):
            return Answer(index, cached, 3, text=gold if right else "no idea")
        labels = list(self._data.labels)
        label = labels.index(gold)
        return Answer(index, cached, 2, label=label if right else (label + 1) % len(labels))


def run(folder: Path, share: float, *, dtype: str = "float32", versions: Any = None, **changes: Any) -> Path:
    """A sweep of the made-up task into ``folder``; returns the folder."""
    changes = {"test_rows": ROWS, "k": "1,2", **changes}
    made = plan(folder.parent / f"{folder.name}-task", changes.pop("k"), **changes)
    engine = Able(made, share, dtype)
    outcome = Runner(
        made, Store(folder), engine.identity(), lambda: engine, versions=versions or {"icl-bench": "1.0"}
    ).run()
    assert not outcome.failed
    return folder


class Done(NamedTuple):
    code: int
    out: str
    err: str


Check = Callable[..., Done]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """``icl-bench check`` of a baseline and a results folder."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards
    monkeypatch.setenv("COLUMNS", "200")

    def run(baseline: Path, results: Path, *words: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--baseline", str(baseline), "--results", str(results), *map(str, words)])
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, a worse one, and the good one as a baseline file."""
    root = tmp_path_factory.mktemp("check")
    run(root / "good", 0.8)
    run(root / "worse", 0.4)
    export_results(root / "good", root / "base.parquet")
    return root


def refused(done: Done, *said: str) -> None:
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("error: ")
    for text in said:
        assert text in done.err


# -- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["base.parquet", "good"])
def test_the_same_run_passes(check: Check, folders: Path, baseline: str):
    done = check(folders / baseline, folders / "good")
    assert (done.code, done.err) == (0, "")
    assert "cards · small" in done.out
    assert "passed: no significant loss larger than 1 points" in done.out
    assert "differs" not in done.out
    assert "only" not in done.out


@pytest.mark.parametrize("baseline", ["base.parquet", "good"])
def test_a_worse_run_fails_and_says_which_examples_flipped(check: Check, folders: Path, baseline: str):
    done = check(folders / baseline, folders / "worse")
    assert (done.code, done.err) == (1, "")
    assert "FAILED: 2 of 2 points with a significant loss" in done.out
    assert "cards small random drawn k=1: " in done.out
    assert " right → wrong, 0 wrong → right" in done.out
    assert "lost: draw 0, " in done.out
    assert "more (--json has all)" in done.out


def test_a_better_run_passes(check: Check, folders: Path):
    assert check(folders / "worse", folders / "good").code == 0


def test_a_tolerance_lets_a_loss_pass(check: Check, folders: Path):
    done = check(folders / "good", folders / "worse", "--tolerance", 0.9)
    assert done.code == 0
    assert "small loss" in done.out


def test_json_has_every_point_and_every_flip(check: Check, folders: Path):
    done = check(folders / "base.parquet", folders / "worse", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["passed"] is False
    assert found["baseline"] == str(folders / "base.parquet")
    assert found["results"] == str(folders / "worse")
    assert (found["tolerance"], found["alpha"], found["allow_missing"]) == (0.01, 0.05, False)
    assert [point["k"] for point in found["points"]] == [1, 2]
    for point in found["points"]:
        assert point["verdict"] == "loss"
        flips = [flip for flip in found["flips"] if flip["k"] == point["k"]]
        assert len(flips) == point["lost"] + point["gained"] > 10
        assert point["difference"] == pytest.approx((point["gained"] - point["lost"]) / 2 / ROWS)
    assert {"gold", "before", "now", "draw", "test_id", "change"} <= found["flips"][0].keys()
    assert found["only_in_baseline"] == found["only_in_results"] == found["changes"] == []


def test_quiet_leaves_the_exit_code(check: Check, folders: Path):
    assert check(folders / "good", folders / "worse", "--quiet") == Done(1, "", "")


def test_points_of_one_side_alone_are_named(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "more", 0.8, k="2,4")
    done = check(folders / "base.parquet", tmp_path / "more", "--allow-missing")
    assert done.code == 0
    assert "only in the baseline: cards small random drawn k=1\n" in done.out
    assert "only now: cards small random drawn k=4\n" in done.out


def test_common_draws_are_compared(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "fewer", 0.8, draws=1)
    done = check(folders / "base.parquet", tmp_path / "fewer", "--json", "--allow-missing")
    found = json.loads(done.out)
    assert [point["draws"] for point in found["points"]] == [1, 1]
    assert [point["missing"] for point in found["points"]] == [ROWS, ROWS]
    assert (done.code, found["passed"]) == (0, True)


def incomplete(done: Done, *said: str) -> None:
    """Compared as far as it goes, and refused."""
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert "--allow-missing" in done.err
    for text in said:
        assert text in done.err


def test_a_run_that_lacks_a_point_of_the_baseline_is_not_passed(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "now", 0.8, k="2")
    done = check(folders / "base.parquet", tmp_path / "now")
    incomplete(done, "lacks all of cards small random drawn k=1 of the baseline")
    assert "INCOMPLETE: the run lacks all of cards small" in done.out
    assert "passed" not in done.out
    told = check(folders / "base.parquet", tmp_path / "now", "--json")
    incomplete(told)
    assert json.loads(told.out)["passed"] is False
    assert check(folders / "base.parquet", tmp_path / "now", "--quiet").code == 2


def test_a_run_that_lacks_draws_of_the_baseline_is_not_passed(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "fewer", 0.8, draws=1)
    done = check(folders / "base.parquet", tmp_path / "fewer")
    incomplete(done, f"lacks {2 * ROWS} predictions of cards small random drawn k=1 (and 1 more")
    assert f"missing now: cards small random drawn k=2: {ROWS} predictions" in done.out


def test_a_loss_is_a_loss_where_points_are_missing_too(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "now", 0.4, k="2")
    done = check(folders / "base.parquet", tmp_path / "now")
    assert (done.code, done.err) == (1, "")
    assert "only in the baseline: cards small random drawn k=1\n" in done.out


def without_scores(path: Path, kept: Callable[[pd.DataFrame], Any], out: Path) -> Path:
    """A baseline whose predictions are without a score where they are not ``kept``."""
    table = pq.read_table(path)
    frame = table.to_pandas()
    correct = frame["correct"].astype(object).where(kept(frame), None)
    place = table.schema.get_field_index("correct")
    pq.write_table(table.set_column(place, "correct", pa.array(correct, pa.bool_())), out)
    return out


def test_a_check_that_compared_nothing_is_refused(check: Check, folders: Path, tmp_path: Path):
    base = without_scores(folders / "base.parquet", lambda rows: rows["k"] > 5, tmp_path / "none.parquet")
    refused(check(base, folders / "good"), "nothing was compared", "has a score on both sides")


def test_one_missing_score_leaves_out_one_prediction_and_no_more(check: Check, folders: Path, tmp_path: Path):
    base = without_scores(folders / "base.parquet", lambda rows: rows.index != 7, tmp_path / "one.parquet")
    done = check(base, folders / "good")
    assert done.code == 0
    assert "k=1: 1 prediction without a score on one side" in done.out
    found = json.loads(check(base, folders / "worse", "--json").out)
    assert [point["left_out"] for point in found["points"]] == [1, 0]
    assert [point["verdict"] for point in found["points"]] == ["loss", "loss"]


def test_a_point_that_could_not_be_compared_is_said(check: Check, folders: Path, tmp_path: Path):
    base = without_scores(folders / "base.parquet", lambda rows: rows["k"] != 1, tmp_path / "part.parquet")
    done = check(base, folders / "good")
    assert done.code == 0
    assert "not compared: cards small random drawn k=1: no prediction has a score" in done.out
    assert "in 1 point\n" in done.out


def test_all_points_together_are_shown_and_fail_a_run_by_themselves(check: Check, tmp_path: Path):
    ks = "1,2,3,4"
    run(tmp_path / "good", 0.8, k=ks, draws=1)
    run(tmp_path / "worse", 0.72, k=ks, draws=1)
    done = check(tmp_path / "good", tmp_path / "worse")
    found = json.loads(check(tmp_path / "good", tmp_path / "worse", "--json").out)
    assert {point["verdict"] for point in found["points"]} == {"ok"}
    whole = found["overall"]
    assert whole["verdict"] == "loss"
    assert (whole["points"], whole["rows"], whole["predictions"]) == (4, ROWS, 4 * ROWS)
    assert whole["p"] <= whole["alpha"] == pytest.approx(0.01)
    assert whole["ci_low"] < whole["difference"] < whole["ci_high"] < 0
    mean = np.mean([point["difference"] for point in found["points"]])
    assert whole["difference"] == pytest.approx(mean)
    assert (done.code, found["passed"]) == (1, False)
    assert f"all 4 points together, {ROWS} test rows: " in done.out
    assert whole["p"] < 0.0001
    assert ", p < 0.0001: loss" in done.out
    assert "FAILED: a significant loss larger than 1 points in all 4 points together" in done.out


def test_another_model_file_dtype_or_version_is_compared_and_said(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "new", 0.4, dtype="bfloat16", fingerprint="other", versions={"icl-bench": "2.0"})
    done = check(folders / "base.parquet", tmp_path / "new")
    assert done.code == 1
    assert "differs: dtype: float32 in the baseline, bfloat16 now\n" in done.out
    assert "differs: fingerprint: none in the baseline, other now\n" in done.out
    assert "differs: icl-bench: 1.0 in the baseline, 2.0 now\n" in done.out
    found = check_results(folders / "base.parquet", tmp_path / "new")
    assert found.only_baseline.empty
    assert found.only_results.empty
    told = pd.DataFrame(found.changes)
    assert told["fact"].tolist() == ["fingerprint", "dtype", "icl-bench"]
    assert told[["before", "now"]].to_numpy().tolist() == [["none", "other"], ["float32", "bfloat16"], ["1.0", "2.0"]]


def test_prompts_that_are_not_the_baselines_are_said(check: Check, folders: Path, tmp_path: Path):
    # the facts are the same, what was asked is not: as a bug in the building of prompts has it
    made = plan(tmp_path / "task", "1,2", test_rows=ROWS)
    for group in made.groups:
        group.group.order = type(group.group.order).parse("by-label")
        group.group._sets.clear()
        group.group._shown.clear()
    engine = Able(made, 0.8)
    Runner(made, Store(tmp_path / "bug"), engine.identity(), lambda: engine).run()
    done = check(folders / "base.parquet", tmp_path / "bug")
    assert "differs: the prompts' token ids, in " in done.out


def test_variants_of_one_point_are_compared_each_with_its_own(check: Check, tmp_path: Path):
    for dtype, share in (("float32", 0.8), ("bfloat16", 0.5)):
        run(tmp_path / "base", share, dtype=dtype)
        run(tmp_path / "now", 0.5, dtype=dtype)
    done = check(tmp_path / "base", tmp_path / "now")
    assert done.code == 1
    assert "FAILED: 2 of 4 points" in done.out
    assert "variant" in done.out


def test_demonstrations_that_were_changed_are_named(check: Check, folders: Path, tmp_path: Path):
    for perturbation in ("none", "labels:permuted"):
        run(tmp_path / "base", 0.8, perturbation=perturbation)
    run(tmp_path / "now", 0.8)
    run(tmp_path / "now", 0.4, k="2,4", perturbation="labels:permuted")
    done = check(tmp_path / "base", tmp_path / "now")
    assert done.code == 1
    assert "variant" not in done.out
    lines = [line.split() for line in done.out.splitlines()]
    assert "cards · small · random" in done.out
    assert sum(line[:1] == ["perturbation"] for line in lines) == 1
    names = ("labels:permuted", "unperturbed")
    assert sorted(line[:2] for line in lines if line and line[0] in names) == [
        ["labels:permuted", "2"],
        ["unperturbed", "1"],
        ["unperturbed", "2"],
    ]
    assert "cards small random drawn labels:permuted k=2: " in done.out
    assert "only in the baseline: cards small random drawn labels:permuted k=1\n" in done.out
    assert "only now: cards small random drawn labels:permuted k=4\n" in done.out
    found = json.loads(check(tmp_path / "base", tmp_path / "now", "--json").out)
    assert sorted((p["perturbation"] or "", p["k"]) for p in found["points"]) == [
        ("", 1),
        ("", 2),
        ("labels:permuted", 2),
    ]
    for name in ("flips", "only_in_baseline", "only_in_results"):
        assert {row["perturbation"] for row in found[name]} == {"labels:permuted"}
    assert "perturbation" not in check(folders / "good", folders / "good").out


def test_that_a_selection_saw_the_queries_is_said_below_its_table(
    check: Check, folders: Path, tmp_path: Path, word_encoder: None
):
    saw = "centroids,of=queries: the texts of the test queries were used to choose its demonstrations"
    run(tmp_path / "saw", 0.8, selects=["random", "centroids,of=queries"])
    assert check(tmp_path / "saw", tmp_path / "saw").out.count(saw) == 1
    assert saw not in check(folders / "good", folders / "good").out


def test_free_text_is_compared_by_a_score(check: Check, tmp_path: Path):
    for name, share in (("base", 0.8), ("now", 0.3)):
        run(tmp_path / name, share, **FREE_TEXT)
    done = check(tmp_path / "base", tmp_path / "now")
    assert done.code == 1
    assert "ROUGE-1" in done.out
    assert "right → wrong" not in done.out
    assert check(tmp_path / "base", tmp_path / "base").code == 0


def test_what_is_compared_is_the_score_that_the_task_names_first(tmp_path: Path):
    found = []
    for names in (["rouge", "exact_text"], ["exact_text", "rouge"]):
        folder = run(tmp_path / names[0], 0.8, **{**FREE_TEXT, "metrics": names})
        found.append(check_results(folder, folder).points["score"].unique().tolist())
    assert found == [["rouge1"], ["exact_text"]]


# -- refusals -----------------------------------------------------------------------------------

TEMPLATE = {"input": "query: {text}", "output": "intent: {label}", "separator": "\n\n"}
UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"template": TEMPLATE}, r"template separator: '\n\n', in the baseline '\n==\n'"),
    ({"labels": {"style": "as-is"}}, "labels (hash): "),
    ({"test_size": 20}, "number of test rows: 20, in the baseline 60"),
    ({"seed": 1}, "seed: 1, in the baseline 0"),
    ({"scoring": "exact"}, "scoring: 'exact', in the baseline 'greedy'"),
    ({"train_rows": 41}, "data train.jsonl: …"),
    ({"pool": {"drop_longest": 0.2}}, "number of pool rows: "),
]


@pytest.mark.parametrize(("changes", "fact"), UNLIKE)
def test_what_was_asked_otherwise_is_refused_and_the_fact_named(
    check: Check, folders: Path, tmp_path: Path, changes: dict[str, Any], fact: str
):
    run(tmp_path / "now", 0.8, **changes)
    done = check(folders / "base.parquet", tmp_path / "now")
    refused(done, "cards small random drawn k=1 (and 1 more point)", fact, "new baseline")


def test_other_right_answers_under_the_same_facts_are_refused(check: Check, folders: Path, tmp_path: Path):
    table = pq.read_table(folders / "base.parquet")
    gold = ["else", *table["gold"].to_pylist()[1:]]
    place = table.schema.get_field_index("gold")
    pq.write_table(table.set_column(place, "gold", pa.array(gold)), tmp_path / "b.parquet")
    refused(check(tmp_path / "b.parquet", folders / "good"), "the right answer of test row", "'else'")


def test_nothing_in_common_is_refused(check: Check, folders: Path, tmp_path: Path):
    run(tmp_path / "now", 0.8, name="other")
    done = check(folders / "base.parquet", tmp_path / "now")
    refused(done, "no point in common", "other small random drawn k=1", "cards small")


def test_imported_predictions_have_no_facts_to_compare(check: Check, folders: Path, tmp_path: Path):
    plainer = pq.read_table(folders / "base.parquet").drop_columns(["variant", "cell"])
    pq.write_table(plainer, tmp_path / "mine.parquet")
    import_predictions(tmp_path / "mine.parquet", tmp_path / "now")
    refused(check(folders / "base.parquet", tmp_path / "now"), "imported")
    # the same import on both sides is the same data
    assert check(tmp_path / "now", tmp_path / "now").code == 0


def test_an_imported_export_keeps_its_facts_and_is_compared(check: Check, folders: Path, tmp_path: Path):
    import_predictions(folders / "base.parquet", tmp_path / "theirs")
    run(tmp_path / "now", 0.8, dtype="bfloat16")  # another variant: the facts decide
    for baseline, results in ((tmp_path / "theirs", tmp_path / "now"), (tmp_path / "now", tmp_path / "theirs")):
        done = check(baseline, results)
        assert (done.code, done.err) == (0, "")
        assert "differs: dtype: " in done.out
    assert check(tmp_path / "theirs", folders / "worse").code == 1
    run(tmp_path / "other", 0.8, dtype="bfloat16", template={"input": "q: {text}", "output": "a: {label}"})
    refused(check(tmp_path / "theirs", tmp_path / "other"), "template")


def test_facts_of_an_export_that_cannot_be_read_are_not_used(check: Check, folders: Path, tmp_path: Path):
    table = pq.read_table(folders / "base.parquet")
    pq.write_table(table.replace_schema_metadata({EXPORT_META: b"{"}), tmp_path / "torn.parquet")
    import_predictions(tmp_path / "torn.parquet", tmp_path / "theirs")
    run(tmp_path / "now", 0.8, dtype="bfloat16")
    refused(check(tmp_path / "theirs", tmp_path / "now"), "the data behind these imported predictions")


def test_a_baseline_without_facts_is_refused(check: Check, folders: Path, tmp_path: Path):
    table = pq.read_table(folders / "base.parquet").replace_schema_metadata()
    pq.write_table(table, tmp_path / "old.parquet")
    refused(check(tmp_path / "old.parquet", folders / "good"), "does not record the data", "export")
    export_results(folders / "good", tmp_path / "b.csv")
    refused(check(tmp_path / "b.csv", folders / "good"), "CSV file has no facts")


def broken(table: pa.Table, how: str) -> pa.Table:
    meta = table.schema.metadata
    if how == "column":
        return table.drop_columns(["gold"])
    if how == "rows":
        return table.slice(0, 0)
    if how == "null":
        return table.set_column(7, "test_id", pa.array([None] * len(table), pa.string()))
    if how == "type":
        return table.set_column(5, "k", pa.array(["many"] * len(table)))
    if how == "twice":
        return pa.concat_tables([table, table.slice(0, 1)])
    if how == "score":
        return table.append_column("rouge1", pa.array([1e300] * len(table)))
    known = json.loads(meta[EXPORT_META])
    facts = {"facts": b"[]", "json": b"{", "inner": json.dumps(dict.fromkeys(known, 1)).encode()}
    return table.replace_schema_metadata({EXPORT_META: facts[how]})


@pytest.mark.parametrize("how", ["column", "rows", "null", "type", "twice", "score", "facts", "json", "inner"])
def test_a_broken_baseline_is_refused(check: Check, folders: Path, tmp_path: Path, how: str):
    table = pq.read_table(folders / "base.parquet")
    pq.write_table(broken(table, how), tmp_path / "b.parquet")
    refused(check(tmp_path / "b.parquet", folders / "good"), "b.parquet", "icl-bench export")


def test_files_that_are_not_there_are_refused(check: Check, folders: Path, tmp_path: Path):
    refused(check(tmp_path / "none.parquet", folders / "good"), "none.parquet: cannot be read")
    refused(check(folders / "base.parquet", tmp_path / "none"), "none: does not exist")
    (tmp_path / "empty").mkdir()
    refused(check(folders / "base.parquet", tmp_path / "empty"), "no results yet")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tolerance", "-0.1"),
        ("--tolerance", "1"),
        ("--tolerance", "nan"),
        ("--alpha", "0"),
        ("--alpha", "nan"),
        ("--alpha", "5"),
    ],
)
def test_numbers_out_of_range_are_refused(check: Check, folders: Path, option: str, value: str):
    refused(check(folders / "good", folders / "good", option, value), f"{option} ", "expected")


small = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@small
@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(folders: Path, tmp_path: Path, data: Any):
    raw = bytearray((folders / "base.parquet").read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(raw), len(raw) // 2, 3, 0]))
    path = tmp_path / "damaged.parquet"
    path.write_bytes(bytes(raw[:end]))
    try:
        check_results(path, folders / "good")
    except UserError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 600


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["facts", "versions", "data", "seed", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@small
@given(json_values, st.booleans())
def test_whatever_facts_a_file_claims_it_is_read_or_refused(folders: Path, tmp_path: Path, value: Any, named: bool):
    table = pq.read_table(folders / "base.parquet").slice(0, 2)
    about = {"other": {"facts": {"seed": value, "data": value}, "versions": []}} if named else value
    place = table.schema.get_field_index("variant")
    table = table.set_column(place, "variant", pa.array(["other"] * 2))
    path = tmp_path / "claims.parquet"
    pq.write_table(table.replace_schema_metadata({EXPORT_META: json.dumps(about)}), path)
    with pytest.raises(UserError) as error:  # no claim makes it a baseline of this run
        check_results(path, folders / "good")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


# -- the file -----------------------------------------------------------------------------------


def test_a_baseline_has_the_facts_of_every_variant(folders: Path):
    side = read_baseline(folders / "base.parquet")
    (origin,) = side.origins.values()
    assert origin.facts.test_rows == ROWS
    assert origin.versions == [{"icl-bench": "1.0"}]
    assert set(side.origins) == set(side.predictions["variant"])


def test_the_same_results_make_the_same_bytes(folders: Path, tmp_path: Path):
    assert run(tmp_path / "good", 0.8)
    export_results(tmp_path / "good", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (folders / "base.parquet").read_bytes()


def test_exported_columns_are_as_before(folders: Path):
    frame = pd.read_parquet(io.BytesIO((folders / "base.parquet").read_bytes()))
    assert len(frame) == 4 * ROWS
    assert np.isin(["task", "prompt_hash", "variant"], frame.columns).all()
