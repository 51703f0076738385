"""The registries: what is imported when, and plugins that cannot be used."""

from __future__ import annotations

import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from support.outside import described

from icl_bench import registry
from icl_bench.errors import UserError
from icl_bench.registry import PluginError, Registry

KINDS = [found for found in vars(registry).values() if isinstance(found, Registry)]
BUILT_IN = {"upper": "string:ascii_uppercase", "lower": "string:ascii_lowercase"}

Install = Callable[..., Registry]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package of these modules and entry points; a registry of texts that finds it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def make(entries: str, package: str = "mine", instance_of: str = "builtins:str", **modules: str) -> Registry:
        described(tmp_path, package, {"test.words": entries})
        for name, code in modules.items():
            (tmp_path / f"{name}.py").write_text(dedent(code), encoding="utf-8")
        return Registry("word", "test.words", BUILT_IN, instance_of=instance_of, reserved=["auto"])

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def only(said: pytest.WarningsRecorder) -> str:
    """The text of the only warning."""
    (one,) = said
    return str(one.message)


def test_names_are_known_without_an_import(install: Install) -> None:
    words = install("zoo = zoo_words:ZOO\nant = zoo_words:ANT", zoo_words="raise AssertionError")
    assert words.names == ("upper", "lower", "ant", "zoo")
    assert words.added() == ["ant", "zoo"]
    assert "zoo" in words
    assert "zo" not in words
    assert words.unknown("zo") == "not a word; did you mean zoo?"
    assert "zoo_words" not in sys.modules


def test_a_plugin_is_read_behind_the_built_in_things(install: Install) -> None:
    words = install("zoo = zoo_words:ZOO", zoo_words="ZOO = 'lion'")
    assert dict(words) == {"upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "lower": "abcdefghijklmnopqrstuvwxyz", "zoo": "lion"}
    assert len(words) == 3
    assert words["zoo"] == words.get("zoo") == "lion"
    with pytest.raises(KeyError):
        words["zo"]
    assert words.get("zo", "none") == "none"


FLAWS = {
    "zoo = absent_module:X": r"word zoo of mine cannot be loaded \(No module named 'absent_module'\)",
    "zoo = flawed_words:MISSING": r"cannot be loaded \(AttributeError: .*MISSING",
    "zoo = failing_words:X": r"cannot be loaded \(ZeroDivisionError: division by zero\)",
    "zoo = ending_words:X": r"cannot be loaded \(SystemExit: 3\)",
    "zoo = flawed_words:NUMBER": "word zoo of mine is an int, not a str",
}


@pytest.mark.parametrize("entry", FLAWS)
def test_a_plugin_that_cannot_be_used_is_an_error_by_name_and_else_skipped_with_one_warning(
    install: Install, entry: str, recwarn: pytest.WarningsRecorder
) -> None:
    words = install(
        f"{entry}\ngood = flawed_words:GOOD",
        flawed_words="NUMBER, GOOD = 3, 'good'",
        failing_words="1 / 0",
        ending_words="raise SystemExit(3)",
    )
    for _ in range(2):
        with pytest.raises(PluginError, match=FLAWS[entry]) as refused:
            words["zoo"]
        assert isinstance(refused.value, UserError)
        assert "\n" not in str(refused.value)
    assert list(words) == ["upper", "lower", "good"]
    assert [*words.values()][2:] == ["good"]
    assert [*words.items()][2:] == [("good", "good")]
    assert words.get("zoo", "none") == "none"
    assert len(words) == 3
    assert re.search(f"{FLAWS[entry]}.*: skipped$", only(recwarn))


def test_the_error_of_a_plugin_can_be_sent_to_another_process(install: Install) -> None:
    words = install("zoo = absent_module:X")
    with pytest.raises(PluginError) as refused:
        words["zoo"]
    sent = pickle.loads(pickle.dumps(refused.value))
    assert (sent.name, str(sent)) == ("zoo", str(refused.value))


def test_an_interrupt_is_none_of_a_plugins_faults(install: Install) -> None:
    words = install("zoo = interrupted_words:X", interrupted_words="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        words["zoo"]


def test_a_name_of_two_packages_means_neither(install: Install) -> None:
    install("zoo = zoo_words:ZOO\nsame = zoo_words:ZOO", "first", zoo_words="ZOO, ANT = 'lion', 'ant'")
    words = install("zoo = zoo_words:ANT\nsame = zoo_words:ZOO", "second")
    with pytest.raises(PluginError, match="word zoo of first and second is defined 2 times; uninstall"):
        words["zoo"]
    with pytest.warns(UserWarning, match="word zoo of first and second"):
        assert list(words) == ["upper", "lower", "same"]


@pytest.mark.parametrize("name", ["lower", "auto"])
def test_a_plugin_with_a_built_in_name_changes_nothing_and_is_named_in_a_warning(
    install: Install, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    words = install(f"{name} = zoo_words:ZOO", zoo_words="ZOO = 'lion'")
    assert list(words) == list(words) == ["upper", "lower"]
    assert words["lower"].startswith("abc")
    assert words.get("auto") is None
    with pytest.raises(KeyError):
        words["auto"]
    assert only(recwarn) == f"word {name} of mine has a built-in name: skipped"


def test_what_a_plugin_raises_in_use_skips_it_and_what_a_built_in_thing_raises_is_raised(
    install: Install, recwarn: pytest.WarningsRecorder
) -> None:
    words = install("zoo = zoo_words:ZOO", zoo_words="ZOO = 'lion'")
    for _ in range(2):
        with words.skipping("zoo"):
            raise ZeroDivisionError("division by zero")
    assert only(recwarn) == "word zoo of mine failed (ZeroDivisionError: division by zero): skipped"
    with pytest.raises(ZeroDivisionError), words.skipping("upper"):
        raise ZeroDivisionError


CLASSES = """
from dataclasses import dataclass
from icl_bench.backends.interface import BackendLoader
from icl_bench.demonstrations.interface import SharedSelector
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import Perturbation
from icl_bench.metrics.interface import Metric
from icl_bench.models.attention_patterns import Pattern
from icl_bench.training.interface import TrainingMethod

class Chooses(SharedSelector):
    name = "mine"

class Nameless(Perturbation):
    pass

class Otherwise(Pattern):
    name = "other"

class Arranges(Order):
    name = "mine"

class Learns(TrainingMethod):
    name = "mine"

class Loads(BackendLoader):
    name = "mine"

class Scores(Metric):
    answers = "text"
"""
INCOMPLETE = {
    "selector": ("Chooses", "has no choose"),
    "perturbation": ("Nameless", "has no name and written"),
    "attention pattern": ("Otherwise", "has another name in its code, 'other'"),
    "order": ("Arranges", "has no arranged and written"),
    "training method": ("Learns", "has no backend and learn"),
    "backend": ("Loads", "has no identity and load"),
    "metric": ("Scores", ""),
    "task source": ("__name__", "is a str, not a function"),
    "finding": ("Scores", "is the class Scores, not a Finding"),
    "kind of storage": ("__name__", "is a str, not a function"),
}


@pytest.mark.parametrize("known", KINDS, ids=lambda known: known.kind)
def test_every_kind_names_what_a_plugin_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Registry) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name, fault = INCOMPLETE[known.kind]
    described(tmp_path, "mine", {known.group: f"mine = incomplete_classes:{name}"})
    (tmp_path / "incomplete_classes.py").write_text(CLASSES, encoding="utf-8")
    monkeypatch.setattr(known, "_loaded", {})
    monkeypatch.setattr(known, "_faults", {})
    monkeypatch.delitem(vars(known), "_entries", raising=False)
    try:
        if not fault:
            assert known["mine"].answers == "text"
            return
        with pytest.raises(PluginError) as refused:
            known["mine"]
        assert str(refused.value) == f"{known.kind} mine of mine {fault}"
    finally:
        vars(known).pop("_entries", None)
        sys.modules.pop("incomplete_classes", None)


@pytest.mark.parametrize("known", KINDS, ids=lambda known: known.kind)
def test_built_in_things_are_what_plugins_have_to_be(known: Registry) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, thing in known.items():
            assert known._fault(name, thing) == ""
