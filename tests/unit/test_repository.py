"""The files of the repository itself: what they name is there, a release changes every version, the first example works."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fakes import tokenized_task

import icl_bench
from icl_bench.demonstrations.interface import SharedSelector

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8")))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
VERSIONED = (
    "icl_bench/__init__.py",
    "CITATION.cff",
    "CHANGELOG.md",
    ".github/workflows/regression.yml",
    "docs/citing.md",
)


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in parsed(workflow)["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_exist_and_actions_pinned_to_a_commit(workflow: Path):
    found = list(steps(workflow))
    assert any("uses" in step for step in found)
    for step in found:
        assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= TARGETS
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
    assert {"name", "permissions"} <= parsed(workflow).keys()


def test_the_workflow_to_copy_has_limits_of_time():
    jobs = parsed(ROOT / ".github" / "workflows" / "regression.yml")["jobs"]
    assert all({"runs-on", "timeout-minutes", "steps"} <= job.keys() for job in jobs.values())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_tests_in_a_workflow_skip_what_needs_the_data_sets(workflow: Path):
    """GitHub sets ``CI``, with which a missing data folder is a failure."""
    of_tests = [step for step in steps(workflow) if re.search(r"\bmake test", step.get("run", ""))]
    assert all(step.get("env", {}).get("CI") == "" for step in of_tests)
    assert of_tests or workflow.name != "ci.yml"


@pytest.mark.parametrize("form", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name)
def test_an_issue_form_asks_something(form: Path):
    fields = parsed(form)["body"]
    assert {"name", "description"} <= parsed(form).keys()
    assert len({field["id"] for field in fields}) == len(fields) > 0


def test_the_python_versions_of_ci_are_those_of_the_package():
    matrix = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    stated = [one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert matrix == stated
    assert PROJECT["requires-python"] == f">={matrix[0]}"


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_has_extras_and_files_that_exist(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    (extras,) = re.findall(r"/source\[([a-z,]+)\]", text)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    for file in re.findall(r"/source/([\w.-]+)", text):
        assert (ROOT / file).exists()


def test_settings_of_editors_are_json():
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert "make .venv/.ready" in settings["postCreateCommand"]


# -- a release -------------------------------------------------------------------------------------


@pytest.fixture
def release() -> Callable[..., list[Path]]:
    function: Callable[..., list[Path]] = runpy.run_path(str(ROOT / ".ci" / "release"))["release"]
    return function


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_release_changes_every_version(release: Callable[..., list[Path]], copy: Path):
    unreleased = "## [Unreleased]\n\n"
    for version, day, entry in (("7.8.9", "2030-01-02", "### Added\n\n- One."), ("7.9.0", "2030-01-03", "### Fixed")):
        changes = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
        before, _, after = changes.partition(unreleased)
        (copy / "CHANGELOG.md").write_text(f"{before}{unreleased}{entry}\n\n{after}", encoding="utf-8")
        release(copy, version, day)
        source, citation, changes, workflow, citing = ((copy / name).read_text(encoding="utf-8") for name in VERSIONED)
        assert f"'icl-bench[gemma]=={version}'" in workflow
        assert f"version = {{{version}}}" in citing
        assert f'__version__ = "{version}"' in source
        assert icl_bench.__version__ not in re.findall(r'"(\d+\.\d+\.\d+)"', source)
        assert yaml.safe_load(citation)["version"] == version
        assert str(yaml.safe_load(citation)["date-released"]) == day
        assert f"{unreleased}## [{version}] - {day}\n\n{entry}" in changes
        assert re.findall(r"(?m)^\[Unreleased\]: .*", changes) == [
            f"[Unreleased]: https://github.com/icl-bench/icl-bench/compare/v{version}...HEAD"
        ]
        assert f"\n[{version}]: https://github.com/icl-bench/icl-bench/releases/tag/v{version}\n" in changes
    with pytest.raises(ValueError, match="nothing is unreleased"):
        release(copy, "7.9.1", "2030-01-04")
    assert yaml.safe_load((copy / "CITATION.cff").read_text(encoding="utf-8"))["version"] == "7.9.0"


def test_the_changelog_has_the_version_and_a_link_of_every_heading():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^## (.*)$", changes)
    assert headings[0] == "[Unreleased]"
    assert headings[1].startswith(f"[{icl_bench.__version__}] - ")
    assert all(re.fullmatch(r"\[\S+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    assert re.findall(r"(?m)^(\[\S+\]): ", changes) == [heading.split(" - ")[0] for heading in headings]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"(?m)^### (.*)$", changes)) <= kinds
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert headings[1] == f"[{citation['version']}] - {citation['date-released']}"


@pytest.mark.parametrize("version", ["", "v1.0.0", "1.0", "1.0.0-rc1", "1.0.0\n"])
def test_a_release_of_no_version_changes_nothing(release: Callable[..., list[Path]], copy: Path, version: str):
    before = [(copy / name).read_bytes() for name in VERSIONED]
    with pytest.raises(ValueError, match="expected a version"):
        release(copy, version, "2030-01-02")
    assert [(copy / name).read_bytes() for name in VERSIONED] == before


# -- the first contribution ------------------------------------------------------------------------


def test_the_selector_of_contributing_is_one(tmp_path: Path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block, line = (re.sub(r"(?m)^   ", "", one) for one in re.findall(r"(?s)```python\n(.*?)```", text))
    module, name = "contributed_selector", re.findall(r"(?m)^class (\w+)", block)[0]
    (tmp_path / f"{module}.py").write_text(block, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module, tmp_path / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, loaded)  # data classes look their module up
        spec.loader.exec_module(loaded)
        selector = getattr(loaded, name)()
        assert isinstance(selector, SharedSelector)
        file = re.findall(r"# (icl_bench/\S+)\.py", block)[0]
        assert line.strip() == f'"{selector.name}": "{file.replace("/", ".")}:{name}",'
        pool = tokenized_task(tmp_path / "task").pool
        chosen = selector.choose(pool, 0, 5)
    sizes = [len(" ".join(row.fields.values())) for row in pool.data.train]
    assert sorted((sizes[i] for i in chosen), reverse=True) == [sizes[i] for i in chosen]
    assert min(sizes[i] for i in chosen) >= sorted(sizes)[-5]
