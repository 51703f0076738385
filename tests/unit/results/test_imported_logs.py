"""Logs of other harnesses enter the results with their verdicts, token counts and questions."""

from __future__ import annotations

import copy
import json
import re
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.in_process import run_command

from icl_bench.analysis.summary import summarise_folder
from icl_bench.errors import UserError
from icl_bench.results.importing import Import, Stated, import_predictions, inspect_logs
from icl_bench.results.importing.samples import Log, Sample, as_table
from icl_bench.results.reading import read_results, read_stored

LM_EVAL = Path(__file__).parent / "lm_eval_logs" / "tiny__dummy"
"""Written by lm-eval 0.4.13: its model ``dummy`` (in ``wines_gen`` with six given answers) on made-up rows,
with two demonstrations. Of the results file, what an import may read is kept."""
DATE = "2026-11-26T03-46-28.331196"


def lm_eval_file(task: str, folder: Path = LM_EVAL) -> Path:
    return folder / f"samples_{task}_{DATE}.jsonl"


def imported(file: Path, results: Path, stated: Stated | None = None) -> tuple[Import, pd.DataFrame]:
    done = import_predictions(file, results, stated or Stated())
    return done, read_results(results)


def refusal(file: Path, results: Path) -> str:
    with pytest.raises(UserError) as refused:
        import_predictions(file, results)
    assert "\n" not in str(refused.value)
    assert not results.exists()
    return str(refused.value)


def taken_or_refused(file: Path, results: Path) -> None:
    """Import a file of anything: what is refused is refused in one line."""
    refused: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_predictions(file, results, NAMED)
        except UserError as error:
            refused.append(str(error))
        else:
            read_results(results)
    for message in refused:
        assert re.fullmatch(r"[^\n]{1,1500}", message)


def dumped(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def lines(path: Path, items: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


# -- lm-eval ------------------------------------------------------------------------------------


def test_choices_of_lm_eval_have_its_accuracy(tmp_path: Path):
    done, found = imported(lm_eval_file("wines_mc"), tmp_path)
    stated = json.loads((LM_EVAL / f"results_{DATE}.json").read_text())["results"]["wines_mc"]
    assert found["correct"].mean() == stated["acc,none"]
    assert (found["correct"] == (found["gold"] == found["prediction"])).all()
    assert found[["task", "model", "k"]].drop_duplicates().to_numpy().tolist() == [["wines_mc", "tiny/dummy", 2]]
    assert set(found["gold"]) == {"red", "white"}
    assert found["question"][1] == "a bottle number 1 of red\nkind:"
    assert (done.rows, done.notes) == (6, ())
    assert summarise_folder(tmp_path).curves["accuracy"].tolist() == [stated["acc,none"]]


def test_generated_answers_of_lm_eval_have_its_verdicts_by_filter(tmp_path: Path):
    said = r"lm-eval counts 2 answers as wrong that are the correct answer .*\('red\\n' for 'red' and 'Red' for 'red'"
    with pytest.warns(UserWarning, match=said):
        done, found = imported(lm_eval_file("wines_gen"), tmp_path)
    assert done.notes == ("2 filters, each a variant of its own: strict, flexible",)
    scores = found.groupby(found["variant"].str.partition("-")[2], observed=True)["correct"].mean()
    assert scores.to_dict() == {"strict": pytest.approx(1 / 6), "flexible": pytest.approx(1 / 2)}
    assert found["exact_match"].tolist() == found["correct"].astype(float).tolist()
    assert found["prediction"][5] == ""


def test_without_results_beside_them_lm_evals_samples_need_k(tmp_path: Path):
    file = tmp_path / "org__model" / lm_eval_file("wines_mc").name
    file.parent.mkdir()
    shutil.copy(lm_eval_file("wines_mc"), file)
    assert refusal(file, tmp_path / "results").endswith("lm-eval's samples do not state the k; set it with --k")
    done, found = imported(file, tmp_path / "results", Stated(k=2))
    assert set(found["model"]) == {"org/model"}
    assert "the model is taken from the folder's name: org/model" in done.notes[0]
    renamed = shutil.copy(file, tmp_path / "mine.jsonl")
    said = refusal(Path(renamed), tmp_path / "other")
    assert said.endswith("do not state the task; set it with --task, --model and --k")


def of_lm_eval(number: int, target: str, choices: list[str], chosen: int, **more: Any) -> dict[str, Any]:
    """A line of samples, as lm-eval writes it for a task of choices."""
    answers = [[str(-1.0 if i == chosen else -2.0), "False"] for i in range(len(choices))]
    arguments = {f"gen_args_{i}": {"arg_0": "q", "arg_1": f" {text}"} for i, text in enumerate(choices)}
    return {
        "doc_id": number,
        "doc": {"q": number},
        "target": target,
        "arguments": arguments,
        "resps": [[answer] for answer in answers],
        "filtered_resps": answers,
        "filter": "none",
        "metrics": ["acc"],
        **more,
    }


NAMED = Stated("t", "m", 0)


def test_a_target_of_lm_eval_is_an_index_or_the_text_that_agrees_with_acc(tmp_path: Path):
    by_text = [of_lm_eval(i, "1", ["1", "2"], i % 2, acc=1.0 - i % 2) for i in range(4)]
    _, found = imported(lines(tmp_path / "a.jsonl", by_text), tmp_path / "a", NAMED)
    assert set(found["gold"]) == {"1"}
    by_index = [of_lm_eval(i, "1", ["1", "2"], i % 2, acc=float(i % 2)) for i in range(4)]
    _, found = imported(lines(tmp_path / "b.jsonl", by_index), tmp_path / "b", NAMED)
    assert set(found["gold"]) == {"2"}
    assert found["correct"].tolist() == [False, True, False, True]


def test_several_right_choices_of_lm_eval_are_all_right(tmp_path: Path):
    items = [of_lm_eval(i, "[0, 2]", ["a", "b", "c"], i, acc=float(i != 1)) for i in range(3)]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["correct"].tolist() == [True, False, True]
    assert found["golds"].map(list).tolist() == [["a", "c"]] * 3


def test_choices_of_each_document_of_lm_eval_have_no_macro_f1(tmp_path: Path):
    items = [of_lm_eval(i, "0", [f"yes {i}", f"no {i}"], i % 2, acc=1.0 - i % 2) for i in range(4)]
    imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert read_stored(tmp_path / "a").predictions["own_choices"].all()
    point = summarise_folder(tmp_path / "a").curves.iloc[0]
    assert point["accuracy"] == 0.5
    assert pd.isna(point["macro_f1"])


def test_contexts_that_differ_are_the_choices_of_lm_eval(tmp_path: Path):
    item = of_lm_eval(0, "1", ["end", "end"], 1, acc=1.0)
    for i in range(2):
        item["arguments"][f"gen_args_{i}"]["arg_0"] = f"way {i}"
    _, found = imported(lines(tmp_path / "a.jsonl", [item]), tmp_path / "a", NAMED)
    assert found[["gold", "prediction"]].to_numpy().tolist() == [["way 1", "way 1"]]


def test_likelihoods_without_a_context_are_no_choices_of_lm_eval(tmp_path: Path):
    item = of_lm_eval(0, "1", ["a", "b"], 1, acc=1.0, metrics=["acc", "acc_mutual_info"], acc_mutual_info=0.0)
    for i, text in enumerate(("a", "b")):
        item["arguments"][f"gen_args_{2 + i}"] = {"arg_0": "", "arg_1": text}
        item["filtered_resps"].append(["-0.1", "True"])
    _, found = imported(lines(tmp_path / "a.jsonl", [item]), tmp_path / "a", NAMED)
    assert found[["gold", "prediction", "correct"]].to_numpy().tolist() == [["b", "b", True]]


def test_older_samples_of_lm_eval_have_their_requests_as_lists(tmp_path: Path):
    items = [of_lm_eval(i, "0", ["a", "b"], i, acc=1.0 - i) for i in range(2)]
    for item in items:
        item["arguments"] = [["q", " a"], ["q", " b"]]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["prediction"].tolist() == ["a", "b"]
    assert set(found["question"]) == {"q"}


def test_ids_of_lm_evals_documents_are_test_ids_where_each_has_one(tmp_path: Path):
    items = [of_lm_eval(i, "0", ["a", "b"], 0, acc=1.0, doc={"id": f"row {i}"}) for i in range(2)]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["test_id"].tolist() == ["row 0", "row 1"]
    items[1]["doc"] = {"id": "row 0"}
    _, found = imported(lines(tmp_path / "b.jsonl", items), tmp_path / "b", NAMED)
    assert found["test_id"].tolist() == ["0", "1"]


def generated(number: int, target: str, answer: str, **scores: Any) -> dict[str, Any]:
    return {
        "doc_id": number,
        "doc": {},
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": {"until": ["\n"]}}},
        "resps": [[answer]],
        "filtered_resps": [answer],
        "filter": "none",
        "metrics": [*scores],
        **scores,
    }


def test_graded_scores_of_lm_eval_are_taken_by_name_or_refused(tmp_path: Path):
    items = [generated(i, "a b", "a", f1=0.5, other=12.0) for i in range(2)]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["f1"].tolist() == [0.5, 0.5]
    assert found["correct"].isna().all()
    file = lines(tmp_path / "b.jsonl", [generated(7, "a", "b", rougeL=45.0)])
    assert "document 7 has scores that are neither right/wrong nor of a known metric (rougeL 45.0)" in refusal(
        file, tmp_path / "b"
    )


def test_a_target_of_lm_eval_that_only_looks_like_a_list_is_a_text(tmp_path: Path):
    items = [generated(i, "[{{1, 2}}]", "[{{1, 2}}]", exact_match=1) for i in range(2)]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["gold"].tolist() == ["[{{1, 2}}]"] * 2
    choices = [of_lm_eval(i, "[{{1, 2}}]", ["[{{1, 2}}]", "b"], 0, acc=1.0) for i in range(2)]
    _, found = imported(lines(tmp_path / "b.jsonl", choices), tmp_path / "b", NAMED)
    assert found["correct"].all()


@pytest.mark.parametrize("metric", ["acc", "exact_match"])
def test_choices_of_lm_eval_with_a_share_as_accuracy_are_refused(tmp_path: Path, metric: str):
    items = [
        of_lm_eval(i, "0", ["a", "b"], 0, metrics=[metric, "x"], **{metric: share}, x=1)
        for i, share in enumerate([1.0, 0.9])
    ]
    assert f"document 1 has scores that are neither right/wrong nor of a known metric ({metric} 0.9" in refusal(
        lines(tmp_path / "a.jsonl", items), tmp_path / "a"
    )


PERCENT = (100, 66.7, 50, 0, 0, 80)


def test_a_score_in_percent_is_left_out_of_all_samples_with_a_note(tmp_path: Path):
    items = [generated(i, "a b", "a", exact_match=int(f1 == 100), f1=f1) for i, f1 in enumerate(PERCENT)]
    done, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert "f1" not in found
    assert found["correct"].sum() == 1
    assert [note for note in done.notes if note.startswith("f1 is left out: it has a score of 80, and scores are")]


def test_samples_that_have_nothing_but_scores_in_percent_are_refused(tmp_path: Path):
    samples = [Sample("0", "a", "a", True, k=0, scores={"f1": 10**400}), Sample("1", "a", "b", k=0, scores={"f1": 0.5})]
    with pytest.raises(
        UserError, match=r"^log: f1 has a score of a huge number; scores must be shares from 0 to 1, not"
    ):
        as_table(Log("a harness", samples, "t", "m"), NAMED, "log")
    log = inspect_log(*(of_inspect(i, f1, scorer="f1") for i, f1 in enumerate(PERCENT)))
    (tmp_path / "b.json").write_text(json.dumps(log))
    assert "sample 0 has scores that are neither right/wrong nor of a known metric (f1 100)" in refusal(
        tmp_path / "b.json", tmp_path / "b"
    )


def test_scores_that_cannot_be_used_are_named_or_counted(tmp_path: Path):
    file = lines(tmp_path / "a.jsonl", [generated(7, "a", "b", **{f"s{n}": 45.0 + n for n in range(7)})])
    assert "(s0 45.0, s1 46.0, s2 47.0, s3 48.0, s4 49.0 and 2 more)" in refusal(file, tmp_path / "r")


def test_a_right_answer_of_lm_eval_that_is_written_otherwise_is_right(tmp_path: Path):
    items = [generated(i, str(i), f"\\boxed{{{i}}}", math_verify=1) for i in range(3)]
    _, found = imported(lines(tmp_path / "a.jsonl", items), tmp_path / "a", NAMED)
    assert found["correct"].all()
    assert found["prediction"].tolist() == ["0", "1", "2"]
    assert found["text"].tolist() == [r"\boxed{0}", r"\boxed{1}", r"\boxed{2}"]


def test_lm_evals_results_are_refused_with_the_file_to_import(tmp_path: Path):
    assert "import the samples_*.jsonl beside it" in refusal(LM_EVAL / f"results_{DATE}.json", tmp_path / "r")


# -- Inspect ------------------------------------------------------------------------------------


def of_inspect(number: int, value: Any = "C", *, scorer: str = "match", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 33, "input_tokens_cache_read": 10}
    return {
        "id": number,
        "epoch": 1,
        "input": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q?"}]}],
        "target": "red",
        "output": {"completion": "It is red.", "usage": {**usage, "reasoning_tokens": 1}},
        "scores": {scorer: {"value": value, "answer": "red" if value == "C" else "white"}},
        **more,
    }


def inspect_log(*samples: dict[str, Any], **about: Any) -> dict[str, Any]:
    task = {"task": "wines", "model": "org/model", "task_args": {"fewshot": 4}, "dataset": {}, "config": {}}
    return {"version": 2, "status": "success", "eval": {**task, **about}, "samples": list(samples)}


def zstandard_zip(path: Path, entries: dict[str, Any]) -> Path:
    """A ZIP file whose entries are compressed as Inspect does, which Python cannot write."""
    codec = pa.Codec("zstd")
    raw = {name: json.dumps(value).encode() for name, value in entries.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in raw.items():
            archive.writestr(name, codec.compress(content, asbytes=True))
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.find(signature)
        while at >= 0:
            struct.pack_into("<H", data, at + place, 93)
            at = data.find(signature, at + 4)
    path.write_bytes(data)
    return path


def as_json(path: Path, log: dict[str, Any]) -> Path:
    return dumped(path.with_suffix(".json"), log)


def as_deflated(path: Path, log: dict[str, Any]) -> Path:
    path = path.with_suffix(".eval")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in entries_of(log).items():
            archive.writestr(name, json.dumps(value))
    return path


def as_zstandard(path: Path, log: dict[str, Any]) -> Path:
    return zstandard_zip(path.with_suffix(".eval"), entries_of(log))


def entries_of(log: dict[str, Any]) -> dict[str, Any]:
    header = {name: value for name, value in log.items() if name != "samples"}
    names = {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in log["samples"]}
    return {"_journal/start.json": header, **names, "summaries.json": [], "header.json": header}


@pytest.mark.parametrize("written", [as_json, as_deflated, as_zstandard])
def test_a_log_of_inspect_is_read_in_each_of_its_formats(
    tmp_path: Path, written: Callable[[Path, dict[str, Any]], Path]
):
    log = inspect_log(of_inspect(1), of_inspect(2, "I"), of_inspect(3, "N"))
    done, found = imported(written(tmp_path / "log", log), tmp_path / "results")
    assert (done.rows, done.notes) == (3, ())
    assert found["correct"].tolist() == [True, False, False]
    assert found["prediction"].tolist() == ["red", "white", "white"]
    assert set(found["text"]) == {"It is red."}
    assert set(found["question"]) == {"q?"}
    row = found.iloc[0]
    assert (row["task"], row["model"], row["k"], row["test_id"]) == ("wines", "org/model", 4, "1")
    tokens = ["prompt_tokens", "cached_tokens", "answer_tokens", "reasoning_tokens"]
    assert row[tokens].tolist() == [30, 10, 3, 1]


def long_log() -> dict[str, Any]:
    return inspect_log(of_inspect(1, output={"completion": "It is red." * 300_000}))


def test_an_entry_of_megabytes_is_read_whole(tmp_path: Path):
    _, found = imported(as_zstandard(tmp_path / "log", long_log()), tmp_path / "results")
    assert found["text"].tolist() == ["It is red." * 300_000]


def test_an_entry_that_is_too_large_is_named_with_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inspect_logs, "LARGEST", 2**21)
    file = as_zstandard(tmp_path / "log", long_log())
    assert refusal(file, tmp_path / "r").startswith(f"{file}:samples/1_epoch_1.json: holds more than ")


def test_epochs_and_scorers_of_inspect_are_variants_and_not_draws(tmp_path: Path):
    both = {"match": {"value": 1}, "includes": {"value": 0.0}}
    log = inspect_log(*(of_inspect(i, epoch=epoch, scores=both) for i in (1, 2) for epoch in (1, 2)), task_args={})
    done, found = imported(as_json(tmp_path / "log", log), tmp_path / "results")
    assert set(found["k"]) == {0}
    assert [note.partition(",")[0] for note in done.notes] == [
        "the log does not state the number of demonstrations: k = 0 is assumed; use --k for another",
        "2 epochs",
        "2 scorers",
    ]
    curves = summarise_folder(tmp_path / "results").curves
    assert sorted(curves["accuracy"]) == [0, 0, 1, 1]
    assert set(curves["draws"]) == {1}


def test_samples_of_inspect_without_a_score_are_counted(tmp_path: Path):
    failed = of_inspect(2, scores={}, error={"message": "no"})
    unscored = of_inspect(3, scores={"match": {"value": float("nan")}})
    log = {**inspect_log(of_inspect(1), failed, unscored), "status": "error"}
    done, found = imported(as_json(tmp_path / "log", log), tmp_path / "results")
    assert len(found) == 1
    assert done.notes == (
        "2 samples without a score left out (an error, or not finished)",
        "the evaluation's status is error: samples may be missing",
    )


def test_letters_of_inspects_choices_are_labels(tmp_path: Path):
    choices = {"choices": ["red", "white"], "target": ["A", "B"], "scorer": "choice"}
    right = of_inspect(1, **choices)
    right["scores"]["choice"]["answer"] = "A, B"
    _, found = imported(as_json(tmp_path / "log", inspect_log(right)), tmp_path / "results")
    assert found[["gold", "prediction", "correct"]].to_numpy().tolist() == [["A, B", "A, B", True]]


def test_partial_credit_of_inspect_is_refused(tmp_path: Path):
    file = as_json(tmp_path / "log", inspect_log(of_inspect(1), of_inspect(2, "P")))
    assert "sample 2 has scores that are neither right/wrong nor of a known metric (match 'P')" in refusal(
        file, tmp_path / "results"
    )


def test_an_archive_that_is_no_log_of_inspect_is_refused(tmp_path: Path):
    (tmp_path / "a.eval").write_bytes(b"PK")
    assert "not a complete log of Inspect" in refusal(tmp_path / "a.eval", tmp_path / "r")
    zstandard_zip(tmp_path / "b.eval", {"x.json": 1})
    assert "has no header.json" in refusal(tmp_path / "b.eval", tmp_path / "r")
    whole = as_zstandard(tmp_path / "c", inspect_log(of_inspect(1))).read_bytes()

    @settings(max_examples=40)
    @given(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=4))
    def check(place: int, inserted: bytes) -> None:
        file = tmp_path / "d.eval"
        file.write_bytes(whole[:place] + inserted + whole[place + len(inserted) :])
        taken_or_refused(file, tmp_path / "results")

    check()


# -- HELM ---------------------------------------------------------------------------------------


def of_helm(number: int, text: str, *, trial: int = 0, **more: Any) -> dict[str, Any]:
    references = [{"output": {"text": t}, "tags": ["correct"] * (t == "red wine")} for t in ("white wine", "red wine")]
    return {
        "instance": {"input": {"text": f"q {number}"}, "references": references, "split": "test", "id": f"id{number}"},
        "train_trial_index": trial,
        "output_mapping": {"A": "white wine", "B": "red wine"},
        "request": {"prompt": "whole"},
        "result": {"success": True, "completions": [{"text": text, "logprob": 0}]},
        "num_train_instances": 5,
        "prompt_truncated": False,
        **more,
    }


def scores_of_helm(number: int, trial: int = 0, **means: float) -> dict[str, Any]:
    stats = [{"name": {"name": name, "split": "test"}, "mean": value} for name, value in means.items()]
    return {"instance_id": f"id{number}", "train_trial_index": trial, "stats": stats}


ADAPTER = {"method": "multiple_choice_joint", "max_train_instances": 5, "model": "org/model"}


def run_of_helm(folder: Path, states: list[dict[str, Any]], scores: list[dict[str, Any]]) -> Path:
    name = "mmlu:subject=wines,method=multiple_choice_joint,model=org_model"
    dumped(folder / "run_spec.json", {"name": name, "adapter_spec": ADAPTER, "scenario_spec": {}})
    dumped(folder / "scenario_state.json", {"adapter_spec": ADAPTER, "request_states": states})
    dumped(folder / "per_instance_stats.json", scores)
    return folder


def test_a_run_of_helm_is_its_folder_or_any_of_its_files(tmp_path: Path):
    states = [of_helm(i, text, trial=trial) for trial in (0, 1) for i, text in enumerate((" B", " A", "C"))]
    scores = [
        scores_of_helm(i, trial, exact_match=float(i == 0), num_prompt_tokens=30, num_output_tokens=1)
        for trial in (0, 1)
        for i in range(3)
    ]
    folder = run_of_helm(tmp_path / "run", states, scores)
    done, found = imported(folder, tmp_path / "results")
    assert (done.rows, done.notes) == (6, ())
    assert found["correct"].tolist() == [True, False, False] * 2
    assert found["prediction"].tolist() == ["B", "A", "C"] * 2
    assert set(found["gold"]) == {"B"}
    assert found["draw"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found[["task", "model", "k"]].drop_duplicates().to_numpy().tolist() == [
        ["mmlu:subject=wines", "org/model", 5]
    ]
    assert set(found["prompt_tokens"]) == {30}
    assert found["question"][1] == "q 1"
    for name in ("scenario_state.json", "per_instance_stats.json", "run_spec.json"):
        assert len(imported(folder / name, tmp_path / name)[1]) == 6


def test_display_files_of_helm_have_the_same(tmp_path: Path):
    folder = run_of_helm(tmp_path / "run", [], [])
    (folder / "scenario_state.json").unlink()
    (folder / "per_instance_stats.json").unlink()
    shown = {"train_trial_index": 0, "predicted_text": " B", "mapped_output": "red wine", "stats": {"exact_match": 1}}
    dumped(folder / "display_predictions.json", [{"instance_id": "id0", **shown}])
    dumped(folder / "instances.json", [of_helm(0, "")["instance"]])
    _, found = imported(folder, tmp_path / "results")
    assert found[["gold", "prediction", "correct"]].to_numpy().tolist() == [["red wine", "red wine", True]]


def test_of_choices_that_helm_asked_for_one_by_one_the_chosen_one_is_the_answer(tmp_path: Path):
    separate: dict[str, Any] = {"output_mapping": None}
    states = [of_helm(i, f"q {i} x", **separate, reference_index=index) for i in (0, 1) for index in (0, 1)]
    states += [of_helm(0, "", **separate, reference_index=1, request_mode="calibration")]
    scores = [scores_of_helm(i, predicted_index=1 - i, exact_match=1 - i) for i in (0, 1)]
    _, found = imported(run_of_helm(tmp_path / "run", states, scores), tmp_path / "results")
    assert found["prediction"].tolist() == ["red wine", "white wine"]
    assert found["correct"].tolist() == [True, False]
    said = refusal(run_of_helm(tmp_path / "other", states, []), tmp_path / "r")
    assert "each choice is a request, and per_instance_stats.json lacks predicted_index" in said


def test_cut_prompts_and_perturbations_of_helm_are_said(tmp_path: Path):
    changed = of_helm(0, " A", num_train_instances=3)
    changed["instance"]["perturbation"] = {"name": "typos"}
    folder = run_of_helm(tmp_path / "run", [of_helm(0, " B"), changed], [])
    done, found = imported(folder, tmp_path / "results")
    assert done.notes == (
        "1 prompt had fewer than 5 demonstrations: HELM had cut them to the window",
        "1 sample perturbed, each perturbation a variant of its own",
    )
    assert found["correct"].tolist() == [True, False]
    assert found["perturbation"].tolist() == [None, "typos"] or found["perturbation"].isna().tolist() == [True, False]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    assert "not a run of HELM: it has neither scenario_state.json nor" in refusal(tmp_path, tmp_path / "r")


# -- Every Eval Ever ----------------------------------------------------------------------------

UUID = "f3a1c0de-4b2e-4c1a-9f6d-1b7e5a2c8d40"


def of_eee(number: int, answer: str, *, right: bool, **more: Any) -> dict[str, Any]:
    how = {"turn_idx": 0, "source": "output.raw", "extraction_method": "match", "is_terminal": True}
    return {
        "schema_version": "0.3.0",
        "evaluation_id": "e",
        "model_id": "org/model",
        "evaluation_name": "wines",
        "sample_id": f"s{number}",
        "interaction_type": "single_turn",
        "input": {"raw": f"q {number}", "reference": ["red", "rouge"]},
        "output": {"raw": [f"The answer is {answer}."]},
        "answer_attribution": [{**how, "extracted_value": answer}],
        "evaluation": {"score": float(right), "is_correct": right},
        "token_usage": {"input_tokens": 30, "output_tokens": 3, "total_tokens": 33, "input_tokens_cache_read": 10},
        **more,
    }


def test_samples_of_every_eval_ever_are_read_from_either_file(tmp_path: Path):
    samples = lines(tmp_path / f"{UUID}_samples.jsonl", [of_eee(0, "rouge", right=True), of_eee(1, "x", right=False)])
    done, found = imported(samples, tmp_path / "results")
    assert done.notes == (
        "the samples do not state the number of demonstrations: k = 0 is assumed; use --k for another",
    )
    assert found["correct"].tolist() == [True, False]
    assert found["question"].tolist() == ["q 0", "q 1"]
    assert found[["prompt_tokens", "cached_tokens", "answer_tokens"]].iloc[0].tolist() == [30, 10, 3]
    assert found[["task", "model", "k"]].drop_duplicates().to_numpy().tolist() == [["wines", "org/model", 0]]
    aggregate = {
        "evaluation_id": "e",
        "eval_library": {"name": "x", "version": "1"},
        "evaluation_results": [],
        "detailed_evaluation_results": {"format": "jsonl", "file_path": f"data/a/b/c/{UUID}_samples.jsonl"},
    }
    file = dumped(tmp_path / f"{UUID}.json", aggregate)
    assert imported(file, tmp_path / "other")[1]["correct"].tolist() == [True, False]
    del aggregate["detailed_evaluation_results"]
    assert "has only aggregates" in refusal(dumped(tmp_path / "b.json", aggregate), tmp_path / "r")


def test_turns_of_every_eval_ever_end_with_the_answer(tmp_path: Path):
    talk = [
        {"turn_idx": 0, "role": "user", "content": "q"},
        {"turn_idx": 1, "role": "assistant", "content": "rouge"},
        {"turn_idx": 2, "role": "tool", "content": "x"},
    ]
    sample = of_eee(0, "", right=True, messages=talk, output=None, answer_attribution=[])
    _, found = imported(lines(tmp_path / "a.jsonl", [sample]), tmp_path / "results")
    assert found["prediction"].tolist() == ["rouge"]


def test_a_graded_score_of_every_eval_ever_needs_its_metric(tmp_path: Path):
    graded = [of_eee(0, "x", right=False, evaluation={"score": 0.5, "is_correct": False}, evaluation_result_id="r")]
    samples = lines(tmp_path / f"{UUID}_samples.jsonl", graded)
    assert "(score 0.5)" in refusal(samples, tmp_path / "r")
    metric = {"evaluation_result_id": "r", "metric_config": {"metric_id": "f1", "lower_is_better": False}}
    aggregate = {"evaluation_id": "e", "eval_library": {"name": "x"}, "evaluation_results": [metric]}
    dumped(tmp_path / f"{UUID}.json", aggregate)
    assert imported(samples, tmp_path / "results")[1]["f1"].tolist() == [0.5]


def test_whole_numbers_of_a_graded_score_are_no_verdicts(tmp_path: Path):
    """Or the curve would be the share of 1 among 0 and 1."""
    graded = inspect_log(*(of_inspect(i, value, scorer="f1") for i, value in enumerate((1, 0, 0.5))))
    _, found = imported(dumped(tmp_path / "graded.json", graded), tmp_path / "results")
    assert found["f1"].tolist() == [1.0, 0.0, 0.5]
    assert found["correct"].isna().all()


def test_a_file_of_samples_that_was_cut_is_refused(tmp_path: Path):
    lines(tmp_path / f"{UUID}_samples.jsonl", [of_eee(i, "red", right=True) for i in range(3)])
    about = {"file_path": f"{UUID}_samples.jsonl", "total_rows": 4}
    aggregate = {"evaluation_id": "e", "eval_library": {"name": "x"}, "evaluation_results": []}
    file = dumped(tmp_path / f"{UUID}.json", {**aggregate, "detailed_evaluation_results": about})
    assert "has 3 samples, and" in refusal(file, tmp_path / "r")
    file = dumped(tmp_path / "b.json", {**aggregate, "detailed_evaluation_results": [about]})
    assert "has only aggregates" in refusal(file, tmp_path / "r")


def test_a_damaged_archive_of_inspect_is_one_line(tmp_path: Path):
    content = json.dumps(inspect_log(of_inspect(1)) | {"padding": "x" * 3000})
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", content)
    raw = bytearray((tmp_path / "a.eval").read_bytes())
    raw[45:60] = bytes(15)
    (tmp_path / "a.eval").write_bytes(raw)
    assert "not a complete log of Inspect" in refusal(tmp_path / "a.eval", tmp_path / "r")
    with zipfile.ZipFile(tmp_path / "b.eval", "w") as archive:
        archive.writestr("header.json", "[1]")
    assert "has no header.json" in refusal(tmp_path / "b.eval", tmp_path / "r")


def test_a_log_of_inspect_without_any_score_says_so(tmp_path: Path):
    log = inspect_log(*(of_inspect(i) | {"scores": None} for i in range(2)))
    assert "none of its 2 samples has a score" in refusal(dumped(tmp_path / "a.json", log), tmp_path / "r")


def test_instances_of_helm_without_an_answer_are_counted(tmp_path: Path):
    states = [of_helm(0, " B"), of_helm(1, "A") | {"result": None}]
    done, found = imported(run_of_helm(tmp_path / "run", states, []), tmp_path / "results")
    assert len(found) == 1
    assert "1 instance without an answer left out" in done.notes


def test_half_a_surrogate_pair_is_a_replacement_character(tmp_path: Path):
    row = {"task": "t", "model": "m", "k": 1, "test_id": "1", "gold": "a", "prediction": "a"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"text": "a \ud83d"}) + "\n")
    _, found = imported(tmp_path / "a.jsonl", tmp_path / "results")
    assert found["text"].tolist() == ["a \ufffd"]


def test_whole_numbers_as_text_are_their_digits(tmp_path: Path):
    rows = [
        {"task": "t", "model": "m", "k": 1, "test_id": str(i), "gold": "a", "prediction": p, "text": i}
        for i, p in enumerate(("a.", "b"))
    ]
    _, found = imported(lines(tmp_path / "a.jsonl", rows), tmp_path / "results")
    assert found["text"].tolist() == ["0", "1"]


# -- whatever a log holds -----------------------------------------------------------------------

# -- files beside ---------------------------------------------------------------------------------


def lm_eval_with_results(folder: Path) -> tuple[list[Path], Path, Callable[[Any], Any]]:
    shutil.copytree(LM_EVAL, folder)
    results = folder / f"results_{DATE}.json"
    return [lm_eval_file("wines_mc", folder)], results, lambda found: {**found, "n-shot": {"wines_mc": 1}}


def helm_with_scores(folder: Path) -> tuple[list[Path], Path, Callable[[Any], Any]]:
    run_of_helm(folder, [of_helm(0, " B")], [scores_of_helm(0, exact_match=1.0)])
    named = [folder, *(folder / name for name in ("scenario_state.json", "per_instance_stats.json", "run_spec.json"))]
    return named, folder / "per_instance_stats.json", lambda _: [scores_of_helm(0, exact_match=0.0)]


def helm_with_instances(folder: Path) -> tuple[list[Path], Path, Callable[[Any], Any]]:
    named, _, _ = helm_with_scores(folder)
    (folder / "scenario_state.json").unlink()
    shown = {"instance_id": "id0", "train_trial_index": 0, "predicted_text": " B", "stats": {}}
    dumped(folder / "display_predictions.json", [shown])
    instances = dumped(folder / "instances.json", [of_helm(0, "")["instance"]])
    return [named[0], *named[2:]], instances, lambda found: [{**found[0], "input": {"text": "another"}}]


def every_eval_ever_with_aggregate(folder: Path) -> tuple[list[Path], Path, Callable[[Any], Any]]:
    graded = of_eee(0, "x", right=False, evaluation={"score": 0.5, "is_correct": False}, evaluation_result_id="r")
    samples = lines(folder / f"{UUID}_samples.jsonl", [graded])

    def aggregate(metric: str) -> dict[str, Any]:
        metrics = [{"evaluation_result_id": "r", "metric_config": {"metric_id": metric}}]
        about = {"file_path": samples.name}
        library = {"name": "x"}
        return {
            "evaluation_id": "e",
            "eval_library": library,
            "evaluation_results": metrics,
            "detailed_evaluation_results": about,
        }

    file = dumped(folder / f"{UUID}.json", aggregate("f1"))
    return [samples, file], file, lambda _: aggregate("bleu")


@pytest.mark.parametrize(
    "made", [lm_eval_with_results, helm_with_scores, helm_with_instances, every_eval_ever_with_aggregate]
)
def test_a_log_is_imported_once_and_once_more_when_a_file_beside_it_changes(
    made: Callable[[Path], tuple[list[Path], Path, Callable[[Any], Any]]], tmp_path: Path
):
    named, beside, change = made(tmp_path / "log")
    results = tmp_path / "results"
    assert [import_predictions(file, results).before for file in named * 2] == [False, *[True] * (2 * len(named) - 1)]
    first = read_stored(results).predictions
    dumped(beside, change(json.loads(beside.read_text())))
    assert [import_predictions(file, results).before for file in named] == [False, *[True] * (len(named) - 1)]
    both = read_stored(results).predictions
    assert len(both) == 2 * len(first)
    assert both["variant"].nunique() == 2 * first["variant"].nunique()


LOGS: dict[str, Callable[[], Any]] = {
    "lm-eval": lambda: [json.loads(line) for line in lm_eval_file("wines_mc").read_text().splitlines()],
    "lm-eval texts": lambda: [json.loads(line) for line in lm_eval_file("wines_gen").read_text().splitlines()],
    "Inspect": lambda: inspect_log(of_inspect(1), of_inspect(2, "I")),
    "HELM": lambda: {"adapter_spec": ADAPTER, "request_states": [of_helm(0, " B"), of_helm(1, "A")]},
    "Every Eval Ever": lambda: [of_eee(0, "red", right=True), of_eee(1, "x", right=False)],
}

junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({}), st.just([None])
)


@st.composite
def mangled(draw: st.DrawFn, log: Any) -> Any:
    """A log of which one value anywhere was replaced or dropped."""
    value, path = log, 0
    while path < 12:
        path += 1
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            value = inner
            continue
        if draw(st.booleans()) and isinstance(value, dict):
            del value[key]
        else:
            value[key] = draw(junk)
        break
    return log


@settings(max_examples=150)
@given(st.data(), st.sampled_from(sorted(LOGS)))
def test_a_log_of_anything_is_taken_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
):
    folder = tmp_path_factory.mktemp("log")
    log = data.draw(mangled(copy.deepcopy(LOGS[kind]())))
    (folder / "scenario_state.json").write_text(json.dumps(log))
    taken_or_refused(folder / "scenario_state.json", folder / "results")


def test_the_command_states_what_a_log_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    as_json(tmp_path / "log", inspect_log(of_inspect(1), task_args={}))
    code, out, err = run_command(
        "import", "log.json", "--model", "mine", "--k", "3", "--select", "random", "--order", "drawn"
    )
    assert (code, err) == (0, "")
    assert re.match(
        r"1 predictions? imported: \S+\n"
        r"note: the log does not state the number of demonstrations: k = 0 is assumed; use --k for another\n",
        out,
    )
    row = read_results("results").iloc[0]
    assert (row["model"], row["k"], row["select"], row["order"]) == ("mine", 3, "random", "drawn")


def test_tokens_of_the_cache_beyond_those_of_the_prompt_are_left_out_with_a_note(tmp_path: Path):
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "input_tokens_cache_read": 10}
    samples = [of_eee(0, "red", right=True), of_eee(1, "x", right=False, token_usage=usage)]
    with pytest.warns(UserWarning, match="tokens of the cache are left out: 1 prompt had fewer tokens than the cache"):
        _, found = imported(lines(tmp_path / "a.jsonl", samples), tmp_path / "results")
    assert found["prompt_tokens"].tolist() == [30, 5]
    assert found["cached_tokens"].isna().all()
