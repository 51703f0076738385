"""Adapting a model to a pattern: what it learns from, that it goes on, and what it writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.fakes import row, write_rows, write_task
from support.models import tiny_checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from unit.sweep.test_vectors_of_prompts import passages_task

import icl_bench
from icl_bench.analysis.query_cost import cost_parts
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.trained import LOG, adapted_to, training_of
from icl_bench.sweep.perplexity import Perplexity, PerplexitySpec
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.training import resumable
from icl_bench.training.adaptation.examples import AdaptationExamples, Lesson, PackedTexts
from icl_bench.training.adaptation.spec import AdaptationSpec, parse_tokens
from icl_bench.training.adaptation.training import Adaptation, collated
from icl_bench.training.examples import LabelledQuery
from icl_bench.training.finetune import Finetuning
from icl_bench.training.head_loss import IGNORED
from icl_bench.training.resumable import CHECKPOINTS, STARTED
from icl_bench.training.sparse_attention import Sparsity, use_sparse_attention
from icl_bench.training.spec import FinetuneSpec


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("texts")
    for name, word in (("one", "river"), ("two", "stone")):
        lines = [f"The {word} number {i} is {i * 7 % 11}." for i in range(300)]
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def asked(tmp_path: Path, tiny: Path, folder: Path, **changes: Any) -> AdaptationSpec:
    return AdaptationSpec(
        **{
            "model": str(tiny),
            "attention": "grouped:2,9",
            "texts": folder,
            "out": tmp_path / "out",
            "length": 32,
            "tokens": 1000,
            "batch": 2,
            "learning_rate": 1e-2,
            "device": "cpu",
            "dtype": "float32",
            **changes,
        }
    )


def trained(spec: AdaptationSpec) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    training = Adaptation.prepare(spec)
    assert not training.folder.is_done()
    training.run(said.append)
    return load_file(spec.out / "model.safetensors"), said


# -- what is learnt from --------------------------------------------------------------------------


class Ids:
    """Of a tokenizer: one token a word."""

    bos_token_id, eos_token_id = 1, 2

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def counting(folder: Path, sizes: Sequence[int]) -> Path:
    for number, size in enumerate(sizes):
        words = " ".join(str(1000 * (number + 1) + i) for i in range(size))
        (folder / f"{number}.txt").write_text(words)
    return folder


def test_texts_stand_in_bos_and_eos_and_their_ends_are_held_back(tmp_path: Path):
    found = PackedTexts.read(counting(tmp_path, [100, 60]), Ids(), 4)
    assert [list(d[[0, 1, -2, -1]]) for d in found.documents] == [[1, 1000, 1094, 2], [1, 2000, 2056, 2]]
    assert [list(h) for h in found.held] == [[1, *range(1095, 1100), 2], [1, *range(2057, 2060), 2]]
    assert (found.tokens, found.held_tokens) == (97 + 59, 7 + 5)
    held = found.held_sequences()
    assert held == [(1, 1095, 1096, 1097), (1098, 1099, 2, 1), (2057, 2058, 2059, 2)]


def test_each_turn_reads_every_token_once_in_another_order(tmp_path: Path):
    found = PackedTexts.read(counting(tmp_path, [100, 60, 80, 70, 90]), Ids(), 8, seed=3)
    count = 3 * found.tokens // 8
    flat = [token for number in range(count) for token in found.sequence(number)]
    orders = []
    for turn in range(2):
        part = flat[turn * found.tokens :][: found.tokens]
        assert sorted(part) == sorted(np.concatenate(found.documents).tolist())
        orders.append([token // 1000 for token in part if token % 1000 == 0])
    assert orders[0] != orders[1]
    again = PackedTexts.read(tmp_path, Ids(), 8, seed=3)
    assert again.sequence(count - 1) == found.sequence(count - 1)
    assert {len(found.sequence(number)) for number in range(count)} == {8}


def test_demonstrations_are_spread_evenly_and_train_their_answers(tmp_path: Path, tiny: Path, texts: Path):
    passages_task(tmp_path / "task")
    spec = asked(tmp_path, tiny, texts, demonstrations_too=(str(tmp_path / "task" / "asked.yaml"),), share=0.5)
    training = Adaptation.prepare(spec)
    examples = training.examples
    lessons = [examples.sequence(number) for number in range(8)]
    assert [lesson.learnt is not None for lesson in lessons] == [False, True] * 4
    plain = [examples.texts.sequence(number) for number in range(4)]
    assert [lesson.ids for lesson in lessons[::2]] == plain
    data = examples.tasks[0].task.data
    pool = [data.train[i] for i in examples.tasks[0].task.pool.rows]
    tokenizer, template = training.tokenizer, data.spec.template
    for lesson in lessons[1::2]:
        assert lesson.learnt is not None
        assert len(lesson.ids) <= 32
        assert len(lesson.learnt) == len(lesson.ends) > 0
        answers = [tokenizer.decode(lesson.ids[a:b]) for a, b in lesson.learnt]
        begins = [0, *lesson.ends]
        for (first, last), answer, begin, end in zip(lesson.learnt, answers, begins[:-1], begins[1:], strict=True):
            assert begin < first < last <= end
            whole = tokenizer.decode(lesson.ids[begin:end])
            row = next(r for r in pool if f"Q: {r.fields['question']}\n" in whole)
            assert answer == f" {row.answer}{template.separator}"


def of_cards(tmp_path: Path, rows: list[str], **task: Any) -> Path:
    """A task whose rows have these texts."""
    file = write_task(tmp_path / "cards", train_rows=len(rows), **task)
    write_rows(file.parent / "train.jsonl", [row(i) | {"text": text} for i, text in enumerate(rows)])
    return file


def test_a_row_longer_than_a_sequence_is_skipped_wherever_it_is_drawn(tmp_path: Path, tiny: Path, texts: Path):
    few = [f"card {i}" for i in range(5)]
    file = of_cards(tmp_path, [" ".join(["where is my card"] * 30), *few])
    spec = asked(tmp_path, tiny, texts, demonstrations_too=(str(file),), share=1.0, length=48)
    training = Adaptation.prepare(spec)
    for number in range(20):
        lesson = training.examples.sequence(number)
        assert lesson.ends
        assert "where" not in training.tokenizer.decode(lesson.ids)
    only = of_cards(tmp_path, [" ".join(["where is my card"] * (30 + i)) for i in range(4)])
    with pytest.raises(UserError, match="--length 48: no demonstration of cards fits"):
        Adaptation.prepare(asked(tmp_path, tiny, texts, demonstrations_too=(str(only),), share=1.0, length=48))


def test_sequences_after_a_tasks_start_are_whole(tmp_path: Path, tiny: Path, texts: Path):
    form = {
        "engine": "jinja",
        "input": "query: {{text}}\nintent:",
        "output": "{{label}}",
        "start": "Say which one.\n\n",
    }
    data = {"train": "train.jsonl", "test": "test.jsonl"}
    file = of_cards(tmp_path, [f"card {i}" for i in range(20)], template=form, data=data)
    training = Adaptation.prepare(asked(tmp_path, tiny, texts, demonstrations_too=(str(file),), share=1.0, length=128))
    for number in range(20):
        lesson = training.examples.sequence(number)
        assert lesson.learnt is not None
        assert len(lesson.learnt) > 1
        assert lesson.ends[-1] == lesson.learnt[-1][1] == len(lesson.ids) <= 128


def test_one_task_after_another_is_asked(tmp_path: Path):
    class Told:
        def __init__(self, name: int) -> None:
            self.name = name

        def sequence(self, number: int) -> Lesson:
            return Lesson((self.name, number))

    texts = PackedTexts.read(counting(tmp_path, [100, 60]), Ids(), 4)
    examples = AdaptationExamples(texts, (Told(-1), Told(-2)), 0.75)  # type: ignore[arg-type]
    found = [examples.sequence(n).ids for n in range(8)]
    assert [ids for ids in found if ids[0] < 0] == [(-1, 0), (-2, 0), (-1, 1), (-2, 1), (-1, 2), (-2, 2)]
    assert [ids for ids in found if ids[0] >= 0] == [texts.sequence(0), texts.sequence(1)]


def test_labels_are_the_learnt_tokens():
    found = collated([Lesson((5, 6, 7, 8, 9), ((1, 2), (3, 5)), (3, 5))])
    assert found["labels"].tolist() == [[IGNORED, 6, IGNORED, 8, 9]]
    assert collated([Lesson((5, 6))])["labels"].tolist() == [[5, 6]]


# -- training -------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_of_logits_as_the_config_has_them(tmp_path: Path, texts: Path):
    """Gemma's cap of logits, say: the loss of the library's own model."""
    folder = tiny_checkpoint(tmp_path / "capped", "gemma3_text")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "final_logit_softcapping": 2.0}))
    training = Adaptation.prepare(asked(tmp_path, folder, texts, attention="full"))
    lesson = training.examples.sequence(0)
    found = float(training._model().eval()(**collated([lesson]))["loss"])
    network = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    ids = torch.tensor([lesson.ids])
    assert found == pytest.approx(float(network(ids, labels=ids).loss), abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("pattern", ["full", "grouped:2,9", "approx:9,4"])
def test_the_loss_is_that_of_perplexity(tmp_path: Path, tiny: Path, texts: Path, pattern: str):
    """What is trained on is what ``icl-bench perplexity`` measures."""
    from icl_bench.backends.transformers.backend import TransformersBackend
    from icl_bench.models.registry import load_tokenizer, resolve

    training = Adaptation.prepare(asked(tmp_path, tiny, texts, attention=pattern, length=200))
    model = training._model()
    lesson = training.examples.sequence(0)
    found = float(model.eval()(**collated([lesson]))["loss"])
    there = resolve(str(tiny))
    backend = TransformersBackend.load(there.source, load_tokenizer(there), device="cpu", dtype="float32")
    expected = float(backend.losses(lesson.ids, Pattern.parse(pattern)).mean())
    assert found == pytest.approx(expected, abs=1e-4)


def test_it_learns_and_writes_an_ordinary_checkpoint(tmp_path: Path, tiny: Path, texts: Path):
    spec = asked(tmp_path, tiny, texts, tokens=2000)
    after, said = trained(spec)
    steps = math.ceil(2000 / (2 * 32))
    before = load_file(tiny / "model.safetensors")
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before if "proj" in name)
    losses = json.loads((spec.out / LOG).read_text())["losses"]
    assert losses[0]["step"] == 0
    assert losses[-1]["step"] == steps - steps % max(1, steps // 10)
    assert losses[-1]["validation"] < losses[0]["validation"] - 0.5
    assert adapted_to(str(spec.out)) == Pattern.parse("grouped:2,9")
    assert adapted_to(str(tiny)) is None
    told = training_of(str(spec.out))
    assert told is not None
    assert told.decoder
    assert told.cost["base"] == tiny.name
    assert told.cost["tokens"] == steps * 2 * 32
    assert told.cost["losses"] == losses
    # a step of it by hand: every other layer of the two sees all before a token, the other nine
    config = AutoConfig.from_pretrained(spec.out)
    passed = sum(w.numel() for name, w in before.items() if "layers" in name or "model.norm" in name)
    head = config.vocab_size * config.hidden_size
    seen = (32 * 33 // 2 + (45 + 23 * 9)) * config.num_hidden_layers // 2
    width = config.num_attention_heads * config.head_dim
    # of each token but the last there are logits, which are computed twice before their gradients
    once = 3 * (2 * 32 * passed + 4 * seen * width) + 4 * 2 * 31 * head
    assert told.cost["flops"] == pytest.approx(2 * steps * once)
    assert not (spec.out / CHECKPOINTS).exists()
    assert any("tokens a second" in text and "min left" in text for text in said)
    assert Adaptation.prepare(spec).folder.is_done()
    network = AutoModelForCausalLM.from_pretrained(spec.out, dtype="float32").eval()
    ids = torch.tensor([[1, 5, 9, 12]])
    assert torch.isfinite(network(ids).logits).all()


@pytest.mark.parametrize("recompute", [False, True])
def test_an_adaptation_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, tiny: Path, texts: Path, recompute: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resumable, "SAVE_STEPS", 2)
    whole = asked(tmp_path, tiny, texts, out=tmp_path / "whole", tokens=450)
    wanted, _ = trained(whole)
    spec = asked(tmp_path, tiny, texts, recompute=recompute, tokens=450)

    class StoppedError(Exception):
        pass

    def stop(said: str) -> None:
        if said.startswith("step 5 "):
            raise StoppedError

    with pytest.raises(StoppedError):
        Adaptation.prepare(spec).run(stop)
    training = Adaptation.prepare(spec)
    assert not training.folder.is_done()
    said: list[str] = []
    training.run(said.append)
    assert any(text.startswith("continuing from step ") for text in said)
    found = load_file(spec.out / "model.safetensors")
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=1e-4)
    one, other = (json.loads((folder / LOG).read_text()) for folder in (whole.out, spec.out))
    assert one["tokens"] == other["tokens"]
    assert [at["step"] for at in one["losses"]] == [at["step"] for at in other["losses"]]


def test_lora_is_merged_into_the_weights(tmp_path: Path, tiny: Path, texts: Path):
    spec = asked(tmp_path, tiny, texts, method="lora", tokens=200)
    after, _ = trained(spec)
    before = load_file(tiny / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before if "q_proj" in name)
    name = "model.embed_tokens.weight"
    assert torch.equal(before[name], after[name])
    told = training_of(str(spec.out))
    assert told is not None
    assert told.cost["trainable_parameters"] < sum(w.numel() for w in after.values()) / 4


def test_positions_are_stretched_where_that_is_asked_for(tmp_path: Path, tiny: Path, texts: Path):
    context = AutoConfig.from_pretrained(tiny).max_position_embeddings
    spec = asked(tmp_path, tiny, texts, rope_scale=4.0, rope_theta=5e5, tokens=64)
    trained(spec)
    config = AutoConfig.from_pretrained(spec.out)
    assert config.max_position_embeddings == 4 * context
    assert config.rope_parameters["rope_type"] == "linear"
    assert config.rope_parameters["factor"] == 4.0
    assert config.rope_parameters["rope_theta"] == 5e5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"length": 100_000, "tokens": 10**6}, "take a smaller length, or add --rope-scale"),
        ({"length": 1500, "tokens": 10**6, "rope_scale": 3.0}, "too few for sequences of 1,500"),
        ({"tokens": 63}, "--tokens 63: less than one step of 2 sequences of 32"),
        ({"attention": "block:4"}, "add --demonstrations-too TASK --share 1"),
        ({"attention": "vectors:4"}, "needs icl-bench train-vectors"),
        ({"attention": "block:1,reuse"}, "take block without reuse"),
        ({"attention": "grouped:2"}, "is written grouped:EVERY,WINDOW"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0"),
        ({"rope_scale": 0.5}, "--rope-scale 0.5: expected 1 or more"),
        ({"share": 1.5}, "--share 1.5"),
        ({"dtype": "float16"}, "gradients exceed its range"),
        ({"texts": Path("/no/such/folder")}, "there is no such folder"),
    ],
)
def test_what_cannot_be_adapted_is_refused_and_nothing_is_written(
    tmp_path: Path, tiny: Path, texts: Path, changes: dict[str, Any], said: str
):
    with pytest.raises(UserError) as refused:
        Adaptation.prepare(asked(tmp_path, tiny, texts, **changes))
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_another_adaptations_folder_is_left_alone(tmp_path: Path, tiny: Path, texts: Path):
    Adaptation.prepare(asked(tmp_path, tiny, texts)).folder.begin()
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"holds another training .attention 'grouped:2,9' instead"):
        Adaptation.prepare(asked(tmp_path, tiny, texts, attention="full")).folder.is_done()
    assert sorted(tmp_path.rglob("*")) == files


def test_a_folder_of_a_task_with_another_template_is_left_alone(tmp_path: Path, tiny: Path, texts: Path):
    rows = [f"card {i}" for i in range(20)]
    spec = asked(tmp_path, tiny, texts, demonstrations_too=(str(of_cards(tmp_path, rows)),), length=64)
    started = Adaptation.prepare(spec).folder
    started.begin()
    assert not Adaptation.prepare(spec).folder.is_done()
    of_cards(tmp_path, rows, template={"input": "text: {text}", "output": "intent: {label}"})
    with pytest.raises(UserError, match=r"holds another training .prompt_form"):
        Adaptation.prepare(spec).folder.is_done()
    # an earlier version did not store the form
    before = {name: value for name, value in started.settings.items() if name != "prompt_form"}
    (started.unfinished / STARTED).write_text(json.dumps(before))
    assert not Adaptation.prepare(spec).folder.is_done()


def test_a_model_of_another_pattern_is_refused(tmp_path: Path, tiny: Path, texts: Path):
    spec = asked(tmp_path, tiny, texts, tokens=64)
    trained(spec)
    with pytest.raises(UserError, match="was adapted to grouped:2,9; continue with that"):
        Adaptation.prepare(asked(tmp_path, spec.out, texts, attention="approx:9,4", out=tmp_path / "more"))


@pytest.mark.parametrize(("text", "tokens"), [("500k", 500_000), ("1M", 10**6), ("1.5m", 1_500_000), ("2000", 2000)])
def test_numbers_of_tokens_are_read(text: str, tokens: int):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "k", "-5", "1e6", "1.2.3", "5kk", "٣"])
def test_other_numbers_of_tokens_are_refused(text: str):
    with pytest.raises(UserError, match="give a number like 500k"):
        parse_tokens(text)


# -- what reads an adapted model --------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, tiny: Path, texts: Path) -> Path:
    folder: Path = tmp_path_factory.mktemp("adapted")
    spec = asked(folder, tiny, texts, tokens=64, attention="grouped:2,3")
    trained(spec)
    return spec.out


def test_an_adapted_model_is_read_by_its_pattern_unless_another_is_asked_for(adapted: Path, tiny: Path, texts: Path):
    own = Pattern.parse("grouped:2,3")
    assert RunSpec(task="trec", model=str(adapted)).attention == (own,)
    assert RunSpec(task="trec", model=str(adapted), attention=None).attention == (own,)
    assert RunSpec(task="trec", model=str(adapted), attention="full").attention == (FULL,)
    for other in (str(tiny), "gemma3-270m", "some-org/adapted"):
        assert RunSpec(task="trec", model=other).attention == (FULL,)
    for attention, expected in ((None, (own,)), (("full",), (FULL,))):
        spec = PerplexitySpec(model=str(adapted), texts=texts, lengths="8", attention=attention)
        assert Perplexity.prepare(spec).patterns == expected
    (adapted / "config.json").write_text((adapted / "config.json").read_text().replace('"grouped:2,3"', '"grouped"'))
    with pytest.raises(UserError, match=r"config.json: icl_bench_attention: --attention grouped"):
        RunSpec(task="trec", model=str(adapted))
    (adapted / "config.json").write_text((adapted / "config.json").read_text().replace('"grouped"', '"grouped:2,3"'))


def test_a_training_of_an_adapted_model_costs_the_adaptation_too(adapted: Path, tmp_path: Path, texts: Path):
    """As its prompts do."""
    spec = asked(tmp_path, adapted, texts, tokens=64, attention="grouped:2,3")
    trained(spec)
    of_first, of_second = (training_of(str(folder)) for folder in (adapted, spec.out))
    assert of_first
    assert of_second
    assert of_second.cost["of_model"] == of_first.cost
    file = of_cards(tmp_path, [f"card {i}" for i in range(40)])
    of_adaptations = {name: of_first.cost[name] + of_second.cost[name] for name in ("tokens", "flops", "seconds")}
    prepared = Finetuning.prepare(
        FinetuneSpec(task=str(file), model=str(spec.out), k="12", draws=1, method=("probe",), device="cpu")
    )
    prepared.run(tmp_path / "results")
    table = icl_bench.read(tmp_path / "results").findings.cost.set_index("select", drop=False)
    once = dict(zip(table.index, cost_parts(table).once[:, :3], strict=True))
    for place, (name, cost) in enumerate(of_adaptations.items()):
        assert once["probe"][place] == pytest.approx(table.loc["probe", f"training_{name}"] + cost)


@torch.no_grad()
def test_classifiers_of_an_adapted_model_read_by_its_pattern_too(adapted: Path, tiny: Path):
    """Their states are those of the language model under the pattern, whatever the padding."""
    from icl_bench.training.classification_head import load_classifier
    from icl_bench.training.methods.probe import LastStates

    ids = torch.tensor([[1, 5, 9, 12, 7, 30, 31, 5]])
    network = AutoModelForCausalLM.from_pretrained(adapted, dtype="float32").eval()
    full = network.get_decoder()(ids).last_hidden_state[0, -1]
    use_sparse_attention(network)
    sparsity = Sparsity.of(Pattern.parse("grouped:2,3"), [None] * network.config.num_hidden_layers)
    expected = network.get_decoder()(ids, sparsity=sparsity).last_hidden_state[0, -1]
    assert not torch.allclose(expected, full, atol=1e-3)

    classifier = load_classifier(str(adapted), 3, None, 0, "float32").eval()
    padded = torch.nn.functional.pad(ids, (0, 4))
    mask = (torch.arange(padded.shape[1]) < ids.shape[1]).long()[None]
    found = classifier.model(padded, attention_mask=mask).last_hidden_state[0, ids.shape[1] - 1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    row = LabelledQuery("a", tuple(ids[0].tolist()), 0)
    states, _ = LastStates(str(adapted), 0, "cpu", "float32").of([row])
    np.testing.assert_allclose(states[0], expected.numpy(), atol=1e-4)
