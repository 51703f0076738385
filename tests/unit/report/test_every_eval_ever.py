"""An export to Every Eval Ever is valid, has our intervals, and is read back equal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.in_process import run_command
from support.predictions import cell, frame

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.summary import summarise_folder
from icl_bench.errors import UserError
from icl_bench.report import every_eval_ever
from icl_bench.report.every_eval_ever import Exported, export_evaluations
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import Stored, read_results, read_stored

KEY = ["task", "model", "select", "order", "attention", "variant", "k", "draw", "test_id"]


@pytest.fixture
def schemas(data_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every Eval Ever's schemas of aggregates and of samples."""
    folder = data_dir.parent / "schemas"
    return tuple(
        json.loads((folder / f"every_eval_ever.{name}.schema.json").read_text()) for name in ("eval", "instance")
    )


def mixed(folder: Path) -> Path:
    """Own cells of labels and of free text, and imports with all token counts."""
    results = folder / "results"
    runner(plan(folder / "task", "1,3", selects=["random", "bm25"]), results, FakeBackend()).run()
    runner(plan(folder / "text", "1", name="texts", **FREE_TEXT), results, FakeBackend()).run()
    rows = frame(cell("aabb", draw=0), cell("abab", draw=1), cell("bbbb", "aabb", k=10, variant="w"))
    tokens = {
        "prompt_tokens": 30,
        "cached_tokens": 20,
        "answer_tokens": 3,
        "reasoning_tokens": 2,
        "cache_write_tokens": 4,
    }
    rows = rows.assign(
        **tokens,
        golds=[[gold, "ä"] for gold in rows["gold"]],
        text="\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    )
    rows.assign(model="org/data", question="what?", note=1.5).to_parquet(folder / "theirs.parquet")
    import_predictions(folder / "theirs.parquet", results)
    return results


def parts(exported: Exported) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The aggregates and samples of each file."""
    found = []
    for path in exported.files:
        aggregate = json.loads(path.read_text())
        samples = path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()
        found.append((aggregate, [json.loads(line) for line in samples]))
    return found


def test_draws_with_the_same_prompts_count_as_one_as_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draws = [cell("aabb" * 10, "ab" * 20, select="bm25", order="relevance", draw=draw) for draw in range(3)]
    rows = frame(*(draw.assign(prompt_hash=[str(i) for i in range(40)]) for draw in draws))
    rows = rows.assign(queries=None, perturbation=None, label_space=None, cell="c")
    rows = rows.assign(prompt_tokens=30, answer_tokens=1, backend="fake")
    stored = Stored(rows, {}, {"v": Facts()}, ())
    monkeypatch.setattr(every_eval_ever, "read_stored", lambda *_, **__: stored)
    ((aggregate, samples),) = parts(export_evaluations(tmp_path, tmp_path / "out"))
    (point,), (row,) = aggregate["evaluation_results"], find(stored).curves.to_dict("records")
    details = point["score_details"]
    assert (details["details"]["draws"], details["uncertainty"]["num_samples"]) == ("1", 40)
    interval = details["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == pytest.approx((row["ci_low"], row["ci_high"]))
    assert len(samples) == aggregate["detailed_evaluation_results"]["total_rows"] == 120


def test_aggregates_and_samples_are_valid_under_both_schemas(
    tmp_path: Path, schemas: tuple[dict[str, Any], dict[str, Any]]
):
    exported = export_evaluations(mixed(tmp_path), tmp_path / "out")
    of_aggregates, of_samples = (jsonschema.Draft7Validator(schema) for schema in schemas)
    seen = 0
    for aggregate, samples in parts(exported):
        of_aggregates.validate(aggregate)
        results = {result["evaluation_result_id"] for result in aggregate["evaluation_results"]}
        for sample in samples:
            of_samples.validate(sample)
            assert sample["evaluation_id"] == aggregate["evaluation_id"]
            assert sample["model_id"] == aggregate["model_info"]["id"]
        assert {sample["evaluation_result_id"] for sample in samples} == results
        seen += len(samples)
    assert seen == exported.samples == len(read_results(tmp_path / "results"))
    assert (len(exported.files), exported.unscored) == (3, 0)


def test_files_are_where_the_datastore_has_them_and_name_each_other(tmp_path: Path):
    exported = export_evaluations(mixed(tmp_path), tmp_path / "out")
    for path, (aggregate, samples) in zip(exported.files, parts(exported), strict=True):
        about = aggregate["detailed_evaluation_results"]
        named = tmp_path / "out" / about["file_path"]
        assert named.parent == path.parent
        assert named.name == f"{path.stem}_samples.jsonl"
        assert hashlib.sha256(named.read_bytes()).hexdigest() == about["checksum"]
        assert about["total_rows"] == len(samples)
        assert len(path.relative_to(tmp_path / "out").parts) == 5
        assert "data" not in path.relative_to(tmp_path / "out").parts[1:]


def test_aggregates_have_the_scores_and_intervals_of_the_summary(tmp_path: Path):
    exported = export_evaluations(mixed(tmp_path), tmp_path / "out")
    curves = summarise_folder(tmp_path / "results").curves
    ids = curves[["task", "model", "select", "order", "attention", "variant", "k"]].astype(str).agg("/".join, axis=1)
    expected = curves.assign(id=ids).set_index("id")
    found = {
        result["evaluation_result_id"]: result for one, _ in parts(exported) for result in one["evaluation_results"]
    }
    assert set(found) == set(ids)
    for name, result in found.items():
        point = expected.loc[name]
        interval = result["score_details"]["uncertainty"]["confidence_interval"]
        values = [result["score_details"]["score"], interval["lower"], interval["upper"]]
        np.testing.assert_allclose(values, point[["score", "ci_low", "ci_high"]].astype(float))
        assert interval["confidence_level"] == 0.95
        assert result["metric_config"]["metric_id"] == point["metric"]
        assert result["score_details"]["details"]["draws"] == str(point["draws"])
        assert result["score_details"]["uncertainty"]["num_samples"] == point["draws"] * point["test_rows"]


def test_samples_have_token_counts_and_questions(tmp_path: Path):
    exported = export_evaluations(mixed(tmp_path), tmp_path / "out")
    by_task = {samples[0]["metadata"]["icl_bench.task"]: samples for _, samples in parts(exported)}
    theirs = by_task["t"][0]
    assert theirs["token_usage"] == {
        "input_tokens": 30,
        "output_tokens": 3,
        "total_tokens": 33,
        "input_tokens_cache_read": 20,
        "input_tokens_cache_write": 4,
        "reasoning_tokens": 2,
    }
    assert theirs["input"] == {"raw": "what?", "reference": ["a", "ä"]}
    text = json.dumps(theirs["input"], sort_keys=True, separators=(",", ":"))
    assert theirs["sample_hash"] == hashlib.sha256(text.encode()).hexdigest()
    own = by_task["cards"][0]
    assert own["input"]["raw"].startswith("query: ")
    assert own["token_usage"]["input_tokens_cache_read"] > 0
    assert exported.without_question == 0


def test_a_question_that_is_not_at_hand_is_empty_and_counted(tmp_path: Path):
    rows = cell("aabb").assign(prompt_tokens=3)
    rows.to_parquet(tmp_path / "a.parquet")
    import_predictions(tmp_path / "a.parquet", tmp_path / "results")
    exported = export_evaluations(tmp_path / "results", tmp_path / "out")
    ((_, samples),) = parts(exported)
    assert exported.without_question == 4
    assert {sample["input"]["raw"] for sample in samples} == {""}
    assert not any("sample_hash" in sample or "token_usage" in sample for sample in samples)


def test_an_export_is_read_back_equal(tmp_path: Path):
    before = read_results(mixed(tmp_path))
    exported = export_evaluations(tmp_path / "results", tmp_path / "out")
    for path in exported.files:
        import_predictions(path, tmp_path / "copy")
    after = read_results(tmp_path / "copy")
    assert set(after.columns) == set(before.columns)

    def plainly(table: pd.DataFrame) -> list[dict[str, Any]]:
        rows = table.astype(object).where(table.notna(), None)[sorted(table.columns)].to_dict("records")
        rows = [{n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in row.items()} for row in rows]
        # a column of someone else's comes back as text, as from CSV
        rows = [{**row, "note": row["note"] and str(row["note"])} for row in rows]
        return sorted(rows, key=lambda row: [str(row[name]) for name in KEY])

    assert plainly(after) == plainly(before)
    folders = (tmp_path / name for name in ("results", "copy"))
    one, other = (summarise_folder(f).curves.astype(object).sort_values(KEY[:7], ignore_index=True) for f in folders)
    pd.testing.assert_frame_equal(one, other, check_dtype=False, check_categorical=False)
    done = import_predictions(exported.files[0], tmp_path / "copy")
    assert done.before


@pytest.mark.parametrize("ending", [".json", "_samples.jsonl"])
def test_facts_and_first_metrics_are_read_back(tmp_path: Path, ending: str):
    """As those of an exported table, whichever file is named."""
    before = read_stored(mixed(tmp_path))
    for path in export_evaluations(tmp_path / "results", tmp_path / "out").files:
        import_predictions(path.with_name(f"{path.stem}{ending}"), tmp_path / "copy")
    after = read_stored(tmp_path / "copy")

    def known(stored: Stored) -> dict[str, Any]:
        return {variant: {**of.known(), "imported": ""} for variant, of in stored.variants.items()}

    assert known(after) == known(before)
    assert sum(of.are_of_a_run for of in after.variants.values()) == 2
    assert before.first_scores.items() <= after.first_scores.items()


def test_choices_of_a_rows_own_are_known_after_reading_back(tmp_path: Path):
    cell("aabb").assign(own_choices=True).to_parquet(tmp_path / "a.parquet")
    import_predictions(tmp_path / "a.parquet", tmp_path / "results")
    (file,) = export_evaluations(tmp_path / "results", tmp_path / "out").files
    import_predictions(file, tmp_path / "copy")
    for folder in ("results", "copy"):
        assert summarise_folder(tmp_path / folder).curves["macro_f1"].isna().all()


def test_the_same_results_have_the_same_names(tmp_path: Path):
    results = mixed(tmp_path)
    one, other = (export_evaluations(results, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in one.files] == [path.name for path in other.files]
    for name in (path.relative_to(tmp_path / "a") for path in one.files):
        samples = name.with_name(f"{name.stem}_samples.jsonl")
        assert (tmp_path / "a" / samples).read_bytes() == (tmp_path / "b" / samples).read_bytes()


def test_the_command_says_what_it_wrote_and_what_it_could_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = cell("aabb")
    rows.to_parquet(tmp_path / "a.parquet")
    free = cell("aabb", task="free").assign(correct=None, rouge1=[0.5, None, 1, 0])
    free.to_parquet(tmp_path / "b.parquet")
    for name in ("a", "b"):
        import_predictions(tmp_path / f"{name}.parquet", tmp_path / "results")
    code, out, err = run_command("export", "--format", "every-eval-ever", "--out", "out")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "7 samples and 2 files of aggregates in out",
        "left out: 1 prediction without a score",
        "without a question: 7 samples, whose data is not at hand (--data-dir)",
    ]
    code, _, err = run_command("export", "--format", "every-eval-ever", "--out", "out", "--scores")
    assert (code, err) == (2, "error: --scores: Every Eval Ever has no field for them; export a table\n")
    code, _, err = run_command("export", "--out", "a.csv", "--data-dir", ".")
    assert (code, err) == (2, "error: --data-dir: a table has no questions; they are for --format every-eval-ever\n")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match=r"^--out .*out: cannot be written"):
        export_evaluations(mixed(tmp_path), tmp_path / "out")
