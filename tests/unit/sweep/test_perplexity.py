"""Perplexity by length: texts cut into windows, losses kept by place, and the table of them."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from support.in_process import said
from support.models import save_tiny_model, tiny_checkpoint
from support.program import as_words
from transformers import GPT2Config

from icl_bench.analysis.findings.perplexity import perplexities
from icl_bench.cli.output.lists import print_perplexity
from icl_bench.errors import UserError
from icl_bench.results import reading
from icl_bench.results.perplexity_losses import losses_name, write_losses
from icl_bench.results.storage import LocalStorage
from icl_bench.results.stored_meta import LossesMeta
from icl_bench.sweep.perplexity import Perplexity, PerplexitySpec, parse_lengths, text_files

LENGTHS = (4, 8, 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "long.txt").write_text("the card was lost on the way to the bank. " * 60)
    (folder / "packed.txt.gz").write_bytes(gzip.compress(b"where is my new card? " * 60))
    (folder / "short.txt").write_text("too short")
    return folder


def spec(model: str, folder: Path, **more: Any) -> PerplexitySpec:
    return PerplexitySpec(
        **{"model": model, "texts": folder, "lengths": "16,64", "dtype": "float32", "device": "cpu", **more}
    )


def losses_file(folder: Path, attention: str, text: str, losses: np.ndarray, **more: Any) -> None:
    """One file as a run writes it."""
    meta = {
        "model": "m",
        "fingerprint": "f",
        "dtype": "float32",
        "attention": attention,
        "text": text,
        "sha256": text,
        "length": LENGTHS[-1],
        "windows": len(losses),
        "by_length": {str(n): {"prefill_flops": 1.0 * n, "cache_bytes": 2.0 * n} for n in LENGTHS},
        **more,
    }
    name = losses_name("m", f"{attention.replace(':', '_')}-{text}")
    write_losses(LocalStorage(folder), name, list(losses), LossesMeta(**meta))


@given(st.lists(st.integers(2, 10**8), min_size=1, max_size=6))
def test_lengths_are_read_in_rising_order(numbers: list[int]) -> None:
    assert parse_lengths(",".join(map(str, numbers))) == tuple(sorted(set(numbers)))


@given(st.text(max_size=8))
def test_what_is_no_list_of_lengths_is_a_users_error(text: str) -> None:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words and all(word.isascii() and word.isdigit() and int(word) > 1 for word in words):
        return
    with pytest.raises(UserError, match="--lengths"):
        parse_lengths(text)


def test_windows_are_the_texts_tokens_one_behind_the_other(model: str, texts: Path) -> None:
    asked = Perplexity.prepare(spec(model, texts, windows=2))
    assert [text.name for text in asked.texts] == ["long", "packed"]
    ids = asked.tokenizer((texts / "long.txt").read_text(), add_special_tokens=False)["input_ids"]
    bos = asked.tokenizer.bos_token_id
    lead = () if bos is None else (bos,)
    size = 64 - len(lead)
    assert asked.texts[0].windows == ((*lead, *ids[:size]), (*lead, *ids[size : 2 * size]))
    assert any("short.txt" in note and "left out" in note for note in asked.notes)


def test_a_run_keeps_what_is_finished_and_the_losses_are_the_backends(model: str, texts: Path, tmp_path: Path) -> None:
    asked = Perplexity.prepare(spec(model, texts, attention=("full", "grouped:2,8")))
    first = asked.run(tmp_path)
    again = asked.run(tmp_path)
    assert (first.computed, first.kept, again.computed, again.kept) == (4, 0, 0, 4)
    table = perplexities(tmp_path)
    assert table["attention"].tolist() == ["full", "full", "grouped:2,8", "grouped:2,8"]
    backend = asked.load_backend()
    losses = [backend.losses(text.windows[0]) for text in asked.texts]
    wanted = np.exp(np.mean([row[15:63].mean() for row in losses]))
    got = table[(table["attention"] == "full") & (table["length"] == 64)]["perplexity"].item()
    assert got == pytest.approx(wanted, rel=1e-5)


def test_lengths_asked_for_later_are_added_to_kept_files(model: str, texts: Path, tmp_path: Path) -> None:
    Perplexity.prepare(spec(model, texts, lengths="16,64")).run(tmp_path)
    more = Perplexity.prepare(spec(model, texts, lengths="8,32,64")).run(tmp_path)
    Perplexity.prepare(spec(model, texts, lengths="8,16,32,64")).run(tmp_path / "at once")
    assert (more.computed, more.kept) == (0, 2)
    pd.testing.assert_frame_equal(perplexities(tmp_path), perplexities(tmp_path / "at once"))
    (file, *_) = (name for name in LocalStorage(tmp_path).names(reading.ASIDE) if name.endswith(".parquet"))
    (tmp_path / file).write_bytes(b"damaged")
    assert Perplexity.prepare(spec(model, texts, lengths="4,64")).run(tmp_path).kept == 2


def test_files_that_are_removed_during_a_run_fail(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, compute = Perplexity.prepare(spec(model, texts)), Perplexity._compute

    def remove(*given: Any) -> None:
        shutil.rmtree(tmp_path / "results")
        compute(*given)

    monkeypatch.setattr(Perplexity, "_compute", remove)
    outcome = made.run(tmp_path / "results")
    count = len(made.texts) * len(made.patterns)
    assert (outcome.computed, len(outcome.failed)) == (count, count - 1)
    assert set(outcome.failed.values()) == {"its file was removed during the run; run it again"}


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize(("scale", "theta"), [(4.0, None), (2.0, 5e4), (1.0, None), (None, 5e4)])
def test_scaled_positions_are_transformers_linear_scaling(
    family: str, scale: float | None, theta: float | None, texts: Path, tmp_path: Path
) -> None:
    """Losses beyond the window are those of the library, by its linear scaling and by frequencies divided by hand."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tiny_checkpoint(tmp_path / "model", family)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": 32}))
    asked = Perplexity.prepare(spec(str(folder), texts, rope_scale=scale, rope_theta=theta))
    assert any("extrapolated" in note for note in asked.notes) == ((scale or 1) < 2)
    window = asked.texts[0].windows[0]
    found = asked.load_backend().losses(window)

    def losses(divided: float = 1.0, base: float | None = theta, **scaling: Any) -> np.ndarray:
        config = AutoConfig.from_pretrained(folder)
        kinds = [part for part in config.rope_parameters.values() if isinstance(part, dict)]
        for parameters in kinds or [config.rope_parameters]:
            parameters |= scaling | ({} if base is None else {"rope_theta": base})
        network = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype="float32").eval()
        for name, frequencies in network.named_buffers():
            if name.endswith("inv_freq"):
                frequencies /= divided
        ids = torch.tensor([window])
        with torch.no_grad():
            logits = network(ids).logits[0]
        return torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none").numpy()

    factor = scale or 1.0
    np.testing.assert_allclose(found, losses(rope_type="linear", factor=factor), atol=2e-5)
    np.testing.assert_allclose(found, losses(divided=factor), atol=2e-5)
    own = losses(base=None)
    assert np.allclose(found, own, atol=2e-5) == (asked.model.positions.facts() == {})


def test_each_scale_is_a_measurement_of_its_own_and_one_is_the_plain_model(
    model: str, texts: Path, tmp_path: Path
) -> None:
    def computed(**positions: Any) -> int:
        asked = Perplexity.prepare(spec(model, texts, attention=("full", "grouped:2,8"), **positions))
        return asked.run(tmp_path).computed

    scales = [{}, {"rope_scale": 1.0}, {"rope_scale": 4.0}, {"rope_scale": 4.0}, {"rope_scale": 4.0, "rope_theta": 5e4}]
    assert [computed(**positions) for positions in scales] == [4, 0, 4, 0, 4]
    table = perplexities(tmp_path)
    assert len(table) == 3 * 4
    positions = set(zip(table["rope_scale"].fillna(0), table["rope_theta"].fillna(0), strict=True))
    assert positions == {(0, 0), (4, 0), (4, 5e4)}
    # sparse layers are compared with full attention at the same positions
    for _, part in table[table["length"] == 64].groupby(["rope_scale", "rope_theta"], dropna=False):
        full, sparse = (part[part["attention"] == name].iloc[0] for name in ("full", "grouped:2,8"))
        assert sparse["ratio"] == pytest.approx(sparse["perplexity"] / full["perplexity"])


def test_a_model_whose_positions_are_scaled_already_or_that_has_none_is_refused(texts: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match="positions are scaled already"):
        Perplexity.prepare(spec(str(folder), texts, rope_scale=2.0))
    assert Perplexity.prepare(spec(str(folder), texts, lengths="16,600", rope_scale=1.0)).notes
    learnt = tiny_checkpoint(tmp_path / "learnt")  # its tokenizer stays
    save_tiny_model(GPT2Config(vocab_size=500, n_embd=32, n_layer=1, n_head=2, n_positions=64), learnt)
    for scale in (1.0, 2.0):
        with pytest.raises(UserError, match="this model has no rotary positions"):
            Perplexity.prepare(spec(str(learnt), texts, lengths="16,100", rope_scale=scale))


def test_predictions_are_read_beside_perplexities(tmp_path: Path) -> None:
    losses_file(tmp_path, "full", "a", np.ones((1, 15)))
    warned: list[str] = []
    assert list(reading.result_files(tmp_path, warned.append)) == []
    assert warned == []


def _stored(losses: np.ndarray) -> np.ndarray:
    """As exact as files are."""
    return losses.astype(np.float32).astype(float)


def test_ranges_limits_and_ratios_are_those_of_the_definition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    full = {name: _stored(rng.gamma(2, 1, (2, 15))) for name in "abc"}
    other = {name: _stored(x + rng.normal(0.1, 0.05, x.shape)) for name, x in full.items()}
    for name in "abc":
        losses_file(tmp_path, "full", name, full[name])
        losses_file(tmp_path, "grouped:2,8", name, other[name])
    losses_file(tmp_path, "full", "only full has it", rng.gamma(2, 1, (1, 15)))
    table = perplexities(tmp_path).set_index(["attention", "length"])
    everything = np.concatenate([full[name] for name in "abc"])
    sparse = np.concatenate([other[name] for name in "abc"])
    row = table.loc["full", 16]
    means = everything[:, 7:15].mean(1)
    assert (row["windows"], row["tokens"], row["after"]) == (6, 6 * 8, 8)
    assert row["perplexity"] == pytest.approx(np.exp(means.mean()))
    of_texts = means.reshape(3, 2).mean(axis=1)  # texts are the sample, windows lie within them
    low, high = stats.t.interval(0.95, 2, of_texts.mean(), stats.sem(of_texts))
    assert row["interval_over"] == "texts"
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((np.exp(low), np.exp(high)))
    assert row["whole"] == pytest.approx(np.exp(everything.mean()))
    row = table.loc["grouped:2,8", 16]
    test = stats.ttest_rel(sparse[:, 7:15].mean(1).reshape(3, 2).mean(axis=1), of_texts)
    assert row["ratio"] == pytest.approx(np.exp((sparse - everything)[:, 7:15].mean()))
    assert row["p"] == pytest.approx(test.pvalue)
    assert row["p_holm"] >= row["p"]
    assert table.loc["full", 4]["tokens"] == 6 * 3
    assert table.loc["full", 4]["perplexity"] == pytest.approx(np.exp(everything[:, :3].mean()))


def test_a_damaged_file_is_left_out_with_a_warning(tmp_path: Path) -> None:
    losses_file(tmp_path, "full", "a", np.ones((2, 15)))
    losses_file(tmp_path, "full", "b", np.zeros((2, 15)))
    (damaged,) = tmp_path.rglob("full-b.parquet")
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.warns(UserWarning, match="not a file of losses, or damaged; left out"):
        table = perplexities(tmp_path)
    assert table["perplexity"].tolist() == pytest.approx([np.e] * 3)


def test_one_window_has_no_limits(tmp_path: Path) -> None:
    losses_file(tmp_path, "full", "a", np.ones((1, 15)))
    table = perplexities(tmp_path)
    assert table["perplexity"].tolist() == pytest.approx([np.e] * 3)
    assert table[["ci_low", "ci_high", "p"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": "16,100000"}, "--lengths 100000: tiny reads 512 tokens"),
        ({"lengths": "16,1025"}, r"add --rope-scale 3 \(or 1,"),
        ({"rope_scale": 0.5}, "--rope-scale 0.5: expected 1 or more"),
        ({"rope_theta": float("inf")}, "--rope-theta inf: expected 1 or more"),
        ({"lengths": "x"}, "--lengths x"),
        ({"texts": Path("missing")}, "there is no such folder"),
        ({"attention": ("block:2",)}, "block patterns need demonstrations"),
        ({"attention": ("grouped:0,4",)}, "EVERY 0; must be at least 1"),
        ({"lengths": "512"}, None),
    ],
)
def test_mistakes_end_in_one_line(model: str, texts: Path, options: dict[str, Any], said: str | None) -> None:
    if said is None:
        (texts / "long.txt").unlink()
        (texts / "packed.txt.gz").unlink()
        said = "no text has 512 tokens"
    with pytest.raises(UserError, match=said) as caught:
        Perplexity.prepare(spec(model, texts, **options))
    assert "\n" not in str(caught.value)


def test_a_folder_without_texts_and_one_that_is_not_utf8_are_said(tmp_path: Path, model: str) -> None:
    with pytest.raises(UserError, match=r"holds no \.txt"):
        text_files(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        Perplexity.prepare(spec(model, tmp_path))
    (tmp_path / "bad.txt").unlink()
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="not a complete gzip file"):
        Perplexity.prepare(spec(model, tmp_path))


def test_the_command_prints_the_table(model: str, texts: Path, tmp_path: Path) -> None:
    words = f"perplexity --model {model} --texts {texts} --lengths 16,32 --attention full,approx:32,4 --dtype float32"
    rows = json.loads(said(*as_words(words), "--results", tmp_path, "--json"))["perplexity"]
    points = [(row["attention"], row["length"]) for row in rows]
    assert points == [("full", 16), ("full", 32), ("approx:32,4", 16), ("approx:32,4", 32)]
    assert rows[3]["ratio"] == pytest.approx(1)  # the window is not left yet
    printed = said(*as_words(f"{words} --rope-scale 4 --rope-theta 40000"), "--results", tmp_path)
    tables = " ".join(printed.split()).split("perplexity of the tokens")[:-1]
    assert [("positions divided by 4, theta 40,000" in table) for table in tables] == [True, False]


def test_the_command_prints_a_retrained_model_of_the_same_name(model: str, texts: Path, tmp_path: Path) -> None:
    words = f"perplexity --texts {texts} --lengths 16,32 --dtype float32 --json"
    results = tmp_path / "results"
    earlier = json.loads(said(*as_words(f"{words} --model {model}"), "--results", results))["perplexity"]
    again = tiny_checkpoint(tmp_path / "tiny", "gemma3_text")
    rows = json.loads(said(*as_words(f"{words} --model {again}"), "--results", results))["perplexity"]
    assert {row["model"] for row in earlier} == {"tiny"}
    assert len({row["model"] for row in rows}) == 2
    assert all(row["model"].startswith("tiny@") for row in rows)
    assert len(rows) == 4


def test_the_terminal_has_a_table_for_each_length_of_windows_and_what_its_intervals_are_over(tmp_path: Path) -> None:
    losses_file(tmp_path, "full", "a", np.ones((3, 15)))
    losses_file(tmp_path, "full", "b", np.ones((2, 15)))
    losses_file(tmp_path, "full", "c", np.ones((4, 7)), length=8, by_length={"4": {}, "8": {}})
    text = io.StringIO()
    print_perplexity(perplexities(tmp_path), Console(file=text, width=200))
    printed = " ".join(text.getvalue().split())
    assert re.findall(r"windows of (\d+) tokens, perplexity", printed) == ["8", "16"]
    assert re.findall(r"(\d+) windows a length; intervals are over (windows of one text|texts)", printed) == [
        ("4", "windows of one text"),
        ("5", "texts"),
    ]


def test_the_report_has_a_panel_a_model_and_every_range_in_its_table(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    from types import SimpleNamespace

    from icl_bench.registry import FINDINGS
    from icl_bench.report.sections.perplexity import perplexity

    rng = np.random.default_rng(1)
    for attention in ("full", "grouped:2,8"):
        losses_file(tmp_path, attention, "a", rng.gamma(2, 1, (3, 15)))
    found: Any = SimpleNamespace(perplexity=perplexities(tmp_path))
    section = perplexity(FINDINGS["perplexity"], found, found)
    assert section is not None
    panel, operations = section.panels
    assert [(row["series"], row["operations"]) for row in operations.rows] == [
        (name, float(length)) for name in ("full attention", "grouped:2,8") for length in LENGTHS
    ]
    whole = perplexities(tmp_path)["whole"].tolist()
    assert [row["value"] for row in operations.rows] == pytest.approx(whole)
    assert operations.spec()["datasets"]["rows"]
    assert [row["series"] for row in panel.rows] == ["full attention"] * 3 + ["grouped:2,8"] * 3
    assert [row["length"] for row in panel.rows] == [*LENGTHS, *LENGTHS]
    drawn = panel.spec()["datasets"]["rows"]
    assert [{name: row[name] for name in panel.rows[0]} for row in drawn] == panel.rows
    (table,) = section.tables
    assert len(table.rows) == 6
    nothing: Any = SimpleNamespace(perplexity=perplexities(tmp_path / "none"))
    assert perplexity(FINDINGS["perplexity"], nothing, nothing) is None
