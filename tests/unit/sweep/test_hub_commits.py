"""A results folder keeps the commit of a model from the hub: a later run uses it, although the model has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fakes import write_task
from support.models import plain_model, tiny_checkpoint

from icl_bench.errors import UserError
from icl_bench.models.registry import resolve, served
from icl_bench.report.prompt_trace import find_prediction, named_cell
from icl_bench.results.hub_commits import commits_of
from icl_bench.results.reading import finished_cells
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.training.finetune import Finetuning
from icl_bench.training.spec import FinetuneSpec

OLD, NEW = "a" * 40, "b" * 40


class HubCache:
    """The cache of the hub's library, offline, with two commits of a model."""

    def __init__(self, cache: Path, name: str = "org/name") -> None:
        self.folder = cache / f"models--{name.replace('/', '--')}"
        made = tiny_checkpoint(cache / "made")
        for commit in (OLD, NEW):
            shutil.copytree(made, self.folder / "snapshots" / commit)
        (self.folder / "refs").mkdir()
        self.move_to(OLD)

    def move_to(self, commit: str) -> None:
        (self.folder / "refs" / "main").write_text(commit)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return HubCache(tmp_path / "hub")


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"task": str(write_task(tmp_path / "task")), "device": "cpu", "dtype": "float32"}


def spec(options: dict[str, Any], model: str = "org/name", k: str = "1") -> RunSpec:
    return RunSpec(**options, model=model, k=k, draws=1, backend="transformers", test_size=3)


def commit_of(sweep: Sweep | Finetuning) -> str:
    return (sweep.model if isinstance(sweep, Sweep) else sweep.task.model).fingerprint.rpartition("@")[2]


def test_a_later_run_uses_the_commit_of_the_first(hub: HubCache, options: dict[str, Any], tmp_path: Path):
    results = tmp_path / "results"
    Sweep.prepare(spec(options), results=results).run(results)
    hub.move_to(NEW)
    later = Sweep.prepare(spec(options, k="1,2"), results=results)
    assert commit_of(later) == OLD
    assert later.finished(results) == [True, False]
    later.run(results)
    assert {meta.facts.fingerprint for _, meta in finished_cells(results)} == {f"hub:org/name@{OLD}"}
    finetune = FinetuneSpec(**options, model="org/name", method=("probe",), k=[4], draws=1, test_size=3)
    assert commit_of(Finetuning.prepare(finetune, commit_of=commits_of(results))) == OLD
    # another folder begins with the newest
    assert commit_of(Sweep.prepare(spec(options), results=tmp_path / "others")) == NEW
    assert not (tmp_path / "others").exists()


def test_prompts_are_checked_with_the_tokenizer_of_their_commit(hub: HubCache, options: dict[str, Any], tmp_path: Path):
    results = tmp_path / "results"
    Sweep.prepare(spec(options), results=results).run(results)
    hub.move_to(NEW)
    found = find_prediction(results, named_cell(task="cards", k=1))
    assert "hash checked" in found.checked


def test_a_stated_revision_comes_first(hub: HubCache, options: dict[str, Any], tmp_path: Path):
    results = tmp_path / "results"
    Sweep.prepare(spec(options), results=results).run(results)
    hub.move_to(NEW)
    newest = Sweep.prepare(spec(options, "org/name@main"), results=results)
    assert commit_of(newest) == NEW
    newest.run(results)
    assert commit_of(Sweep.prepare(spec(options), results=results)) == OLD  # the first is kept
    assert {meta.spec.model for _, meta in finished_cells(results)} == {"org/name"}
    assert commit_of(Sweep.prepare(spec(options, f"org/name@{OLD}"))) == OLD


def test_a_registered_model_has_the_revision_of_its_registration_else_that_of_the_folder(
    hub: HubCache, options: dict[str, Any], tmp_path: Path
):
    HubCache(tmp_path / "hub", "yaofu/llama-2-7b-80k").move_to(NEW)
    assert resolve("llama2-80k").fingerprint.endswith(NEW)
    assert resolve("llama2-80k", commit_of=lambda _: OLD).fingerprint.endswith(OLD)
    stated = resolve(f"llama2-80k@{OLD}", commit_of=lambda _: NEW)
    assert (stated.name, stated.fingerprint, stated.context_tokens) == (
        "llama2-80k",
        f"hub:yaofu/llama-2-7b-80k@{OLD}",
        81920,
    )
    assert stated.pinned_name == stated.requested_name == f"llama2-80k@{OLD}"
    with pytest.raises(UserError, match="cannot be downloaded from the hub"):  # that of its registration is not here
        resolve("llama2", commit_of=lambda _: pytest.fail("asks the folder"))


def test_a_commit_that_is_gone_is_refused_in_one_line(hub: HubCache, options: dict[str, Any], tmp_path: Path):
    results = tmp_path / "results"
    Sweep.prepare(spec(options), results=results).run(results)
    shutil.rmtree(hub.folder / "snapshots" / OLD)
    with pytest.raises(
        UserError, match=r"org/name, commit a{12} of the results folder \(org/name@main is the newest\), cannot be"
    ) as no:
        Sweep.prepare(spec(options), results=results)
    assert "\n" not in str(no.value)


@pytest.mark.parametrize("content", ["", "main", "../../x", "A" * 40])
def test_a_file_without_a_commit_pins_nothing(content: str, hub: HubCache, tmp_path: Path):
    file = tmp_path / "results" / "_hub" / "org" / "name.txt"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert resolve("org/name", commit_of=commits_of(tmp_path / "results")).fingerprint.endswith(OLD)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/name@", "no revision after the @"),
        ("gemma3-270m@main", "gemma3-270m is a package, which has no revisions; leave out @main"),
        ("org/name@nowhere", "cannot be downloaded from the hub"),
        ("name@main", "not a known name, a folder or a hub id"),
    ],
)
def test_what_is_no_revision_is_refused(name: str, message: str, hub: HubCache):
    with pytest.raises(UserError, match=message):
        resolve(name)


def test_a_folder_may_have_an_at_sign(tmp_path: Path):
    folder = tiny_checkpoint(tmp_path / "run@3")
    assert resolve(str(folder)).name == "run@3"


def test_a_tokenizer_has_a_revision_too(hub: HubCache):
    hub.move_to(NEW)
    assert Path(served("any", f"org/name@{OLD}").source).name == OLD
    with pytest.raises(UserError, match="not a known model, a folder or a hub id"):
        served("any", "gemma3-270m@main")
    with pytest.raises(UserError, match="--tokenizer org/name@: no revision after the @"):
        served("any", "org/name@")


def lora(base: Path, folder: Path, **config: Any) -> Path:
    """An adapter of the hub's model, whose weights are those of a folder."""
    pytest.importorskip("peft")
    from peft import LoraConfig, get_peft_model

    shape = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(plain_model(base), shape).save_pretrained(folder)
    stored = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**stored, "base_model_name_or_path": "org/name", **config}))
    return folder


@pytest.mark.parametrize("given", [{}, {"base": "org/name"}])
def test_a_later_run_of_an_adapter_uses_the_commit_of_its_base(
    given: dict[str, str], hub: HubCache, options: dict[str, Any], tmp_path: Path
):
    results, tuned = tmp_path / "results", lora(hub.folder / "snapshots" / OLD, tmp_path / "tuned")
    asked = spec({**options, **given}, str(tuned))
    Sweep.prepare(asked, results=results).run(results)
    hub.move_to(NEW)
    assert commit_of(Sweep.prepare(asked, results=results)) == OLD
    assert commit_of(Sweep.prepare(spec(options), results=results)) == OLD
    assert commit_of(Sweep.prepare(asked, results=tmp_path / "others")) == NEW
    found = find_prediction(results, named_cell(task="cards", k=1))
    assert "hash checked" in found.checked


def test_the_base_of_an_adapter_has_the_revision_of_its_config(hub: HubCache, options: dict[str, Any], tmp_path: Path):
    place = lora(hub.folder / "snapshots" / OLD, tmp_path / "tuned", revision=NEW)
    assert resolve(str(place)).fingerprint.endswith(f"+base:hub:org/name@{NEW}")
    assert resolve(str(place), commit_of=lambda _: OLD).fingerprint.endswith(NEW)
    assert resolve(str(place), base=f"org/name@{OLD}").fingerprint.endswith(OLD)
    assert resolve(str(place), base="org/name").fingerprint.endswith(OLD)
