"""Training a decoder to read vectors: what it learns from, that it goes on, and what it writes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.models import tiny_checkpoint
from unit.sweep.test_vectors_of_prompts import passages_task

from icl_bench.errors import UserError
from icl_bench.models.architecture import architecture_of
from icl_bench.models.trained import LOG, training_of
from icl_bench.models.vector_encoder import ENCODER, SETTINGS, WEIGHTS, VectorEncoder, vector_settings_of
from icl_bench.training import resumable
from icl_bench.training.resumable import CHECKPOINTS, STARTED
from icl_bench.training.vectors.model import collated
from icl_bench.training.vectors.spec import VectorSpec
from icl_bench.training.vectors.training import BEST_WEIGHTS, VectorTraining


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def asked(tmp_path: Path, tiny: Path, **changes: Any) -> VectorSpec:
    if not (tmp_path / "task").exists():
        passages_task(tmp_path / "task")
    return VectorSpec(
        **{
            "task": str(tmp_path / "task" / "asked.yaml"),
            "model": str(tiny),
            "out": tmp_path / "out",
            "vectors": 2,
            "epochs": 2,
            "batch": 4,
            "learning_rate": 1e-2,
            "device": "cpu",
            "dtype": "float32",
            **changes,
        }
    )


def trained(spec: VectorSpec) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    training = VectorTraining.prepare(spec)
    assert not training.folder.is_done()
    training.run(said.append)
    return load_file(spec.out / WEIGHTS), said


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- what it learns from ------------------------------------------------------------------------


def without_passages(folder: Path) -> Path:
    file = passages_task(folder)
    told = json.loads(file.read_text())
    del told["data"]["passages"]
    file.write_text(json.dumps(told))
    return file


def test_demonstrations_are_others_and_drawn_anew_in_each_epoch(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, task=str(without_passages(tmp_path / "task")), vectors=3, text=2)
    examples = VectorTraining.prepare(spec).examples
    assert not examples.has_passages
    first, second = (examples.epoch(number, range(examples.rows)) for number in (0, 1))
    assert sorted(row.answer for row in first) == sorted(row.answer for row in second)
    assert [row.prompt for row in first] != [row.prompt for row in second]
    assert first == examples.epoch(0, range(examples.rows))
    written = re.compile(r"^Q: what is (\d+)\nA: (yes|no)$")
    for row in first:
        assert len(set(row.texts)) == 3
        assert all(written.match(text) for text in row.texts)
    task = examples.task
    for place, row in enumerate(first):
        text = task.tokenizer.decode(list(row.prompt))
        shown = re.findall(r"what is (\d+)", text)
        assert len(set(shown)) == 3, "two demonstrations and the question"
        read = {found[1] for found in map(written.match, row.texts) if found}
        assert not read & set(shown), place


def test_validation_rows_and_spared_rows_are_not_learnt_from(tmp_path: Path, tiny: Path):
    task = str(without_passages(tmp_path / "task"))
    spec = asked(tmp_path, tiny, task=task, vectors=2, spare_k=5, spare_draws=2)
    examples = VectorTraining.prepare(spec).examples
    pool = examples.task.pool
    spared = {int(i) for draw in range(2) for i in pool.drawn(draw)[:5]}
    texts = {examples.task.vector_text(examples.task.data.train[i]) for i in spared}
    assert not texts & set(examples.all_texts())
    learnt = {row.prompt for row in examples.epoch(0, range(examples.rows))}
    held = {row.prompt for row in examples.validation}
    assert learnt
    assert held
    assert not learnt & held
    assert len(learnt) + len(held) == len(pool) - len(spared)
    with pytest.raises(UserError, match="0 rows of the pool are left to train on, and 4 are needed"):
        _ = VectorTraining.prepare(spec.model_copy(update={"spare_k": 30})).examples.rows


def test_validation_rows_are_never_demonstrations_of_training_rows(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, task=str(without_passages(tmp_path / "task")), text=4, vectors=1)
    examples = VectorTraining.prepare(spec).examples
    held = {int(index) for index in examples._order[: examples._held]}
    for epoch in range(2):
        beside = [examples._beside(int(index), str(epoch)) for index in examples._order[examples._held :]]
        assert all(len(shown) == 5 for shown in beside)
        assert not held & {int(index) for shown in beside for index in shown}
    texts = {examples.task.vector_text(examples.task.data.train[index]) for index in held}
    assert not texts & set(examples.all_texts())


def test_enough_rows_are_left_beside_those_that_validate(tmp_path: Path, tiny: Path):
    """Of 20 left rows, two choose the checkpoint: a training row has 17 others."""
    task = str(without_passages(tmp_path / "task"))
    pool = len(VectorTraining.prepare(asked(tmp_path, tiny, task=task)).task.pool)
    spec = asked(tmp_path, tiny, task=task, text=17, vectors=0, train="all", spare_k=pool - 20, spare_draws=1)
    examples = VectorTraining.prepare(spec).examples
    assert len(examples._beside(int(examples._order[-1]), "0")) == 17
    with pytest.raises(UserError, match="20 rows of the pool are left to train on, and 21 are needed"):
        _ = VectorTraining.prepare(spec.model_copy(update={"text": 18})).examples.rows


def test_a_share_of_the_rows_is_read_without_vectors(tmp_path: Path, tiny: Path):
    plain = VectorTraining.prepare(asked(tmp_path, tiny, train="all")).examples
    training = VectorTraining.prepare(asked(tmp_path, tiny, train="all", without_vectors=0.5))
    mixed = training.examples
    shares = []
    for epoch in range(20):
        rows, full = (of.epoch(epoch, range(of.rows)) for of in (mixed, plain))
        assert [(row.prompt, row.answer) for row in rows] == [(row.prompt, row.answer) for row in full]
        assert all(row.texts in ((), there.texts) for row, there in zip(rows, full, strict=True))
        shares.append([not row.texts for row in rows])
    assert shares[0] != shares[1]
    assert 0.4 < sum(map(sum, shares)) / sum(map(len, shares)) < 0.6
    model = training._model(lambda _: None)
    bare = [row for row in mixed.epoch(0, range(mixed.rows)) if not row.texts]
    model(**collated(bare, pad=1))["loss"].backward()  # nor does a batch without any vector fail


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"without_vectors": 0.5}, "add --train all, or omit it"),
        ({"without_vectors": 0.5, "train": "all", "vectors": 0}, "omit one of the two"),
        ({"without_vectors": 1.0, "train": "all"}, "--without-vectors 1.0: expected less than 1"),
    ],
)
def test_rows_without_vectors_need_weights_that_learn_from_them(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], said: str
):
    with pytest.raises(UserError, match=re.escape(said)):
        VectorTraining.prepare(asked(tmp_path, tiny, **changes))


def test_a_batch_ends_with_the_answers(tmp_path: Path, tiny: Path):
    examples = VectorTraining.prepare(asked(tmp_path, tiny)).examples
    rows = examples.epoch(0, range(3))
    batch = collated(rows, pad=1)
    for place, row in enumerate(rows):
        there = batch["input_ids"][place][batch["attention_mask"][place].bool()]
        assert tuple(there.tolist()) == (*row.prompt, *row.answer)
        held = batch["labels"][place]
        assert tuple(held[held != -100].tolist()) == row.answer
        assert batch["texts"][place] == list(row.texts)


@torch.no_grad()
@pytest.mark.parametrize("of", ["answer", "sequence"])
def test_the_loss_is_that_of_the_answers_tokens_or_of_all(tmp_path: Path, tiny: Path, of: str):
    """Of a batch of unequal lengths, against each row alone without padding: equation 2 of the paper, and its part."""
    training = VectorTraining.prepare(asked(tmp_path, tiny, loss=of))
    model = training._model(lambda _: None)
    rows = training.examples.epoch(0, range(5))
    total, tokens = 0.0, 0
    for row in rows:
        model.readers.reading = None
        if row.texts:
            found = torch.stack(list(training.encoder.tensors(row.texts).values()))[None]
            model.readers.reading = model.readers.project(found)
        both = torch.tensor([[*row.prompt, *row.answer]])
        told = model.network(both, use_cache=False).logits[0].log_softmax(-1)
        first = len(row.prompt) if of == "answer" else 1
        total -= sum(float(told[i - 1, both[0, i]]) for i in range(first, both.shape[1]))
        tokens += both.shape[1] - first
    loss = float(model(**collated(rows, 1, of))["loss"])
    assert loss == pytest.approx(total / tokens, rel=1e-4)


# -- training -----------------------------------------------------------------------------------


def test_it_learns_and_writes_an_ordinary_checkpoint_with_readers_beside_it(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, epochs=4)
    _, said = trained(spec)
    log = json.loads((spec.out / LOG).read_text())
    losses = [at["validation"] for at in log["losses"]]
    assert losses[0] > min(losses) + 0.1
    assert next(at["step"] for at in log["losses"]) == 0
    assert log["seconds"] > 0
    assert any(re.match(r"training [0-9.]+ million parameters, .* GiB", line) for line in said)
    assert not (spec.out / CHECKPOINTS).exists()
    told = vector_settings_of(str(spec.out))
    assert told is not None
    assert (told.vectors, told.width, told.trained) == (2, 384, "added")
    frozen, after = (load_file(folder / "model.safetensors") for folder in (tiny, spec.out))
    assert same(frozen, after)
    assert VectorTraining.prepare(spec).folder.is_done()


def test_another_loss_is_another_training_and_the_default_is_named_as_before(tmp_path: Path, tiny: Path):
    answers = asked(tmp_path, tiny, epochs=1, out=tmp_path / "answers")
    assert not {"loss", "without_vectors"} & answers.decisive().keys()
    whole = asked(tmp_path, tiny, epochs=1, out=tmp_path / "whole", loss="sequence")
    assert whole.decisive()["loss"] == "sequence"
    found = [trained(spec)[0] for spec in (answers, whole)]
    assert not same(*found)
    stored = [json.loads((spec.out / SETTINGS).read_text()) for spec in (answers, whole)]
    assert [settings.get("loss") for settings in stored] == [None, "sequence"]
    told = [vector_settings_of(str(spec.out)) for spec in (answers, whole)]
    assert [settings.loss for settings in told if settings] == ["answer", "sequence"]
    with pytest.raises(UserError, match="holds another training"):
        VectorTraining.prepare(answers.model_copy(update={"loss": "sequence"})).folder.is_done()


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resumable, "SAVE_STEPS", 3)
    whole = asked(tmp_path, tiny, out=tmp_path / "whole", epochs=3)
    wanted, _ = trained(whole)
    spec = asked(tmp_path, tiny, epochs=3)

    class Killed(BaseException):
        pass

    def stop_at(last: int) -> Any:
        def say(line: str) -> None:
            if (found := re.match(r"step (\d+) of", line)) and int(found[1]) >= last:
                raise Killed

        return say

    for last in (4, 11):
        training = VectorTraining.prepare(spec)
        with pytest.raises(Killed):
            training.run(stop_at(last))
        assert list((spec.out / CHECKPOINTS).glob("checkpoint-*"))
    found, said = trained(spec)
    assert any(line.startswith("continuing from step 9 of") for line in said), said
    assert same(found, wanted)
    one, other = (json.loads((folder / LOG).read_text()) for folder in (whole.out, spec.out))
    learnt = ("losses", "tokens", "vectors_read", "flops", "trainable_parameters")
    assert [one[name] for name in learnt] == [other[name] for name in learnt]
    examples = VectorTraining.prepare(spec).examples
    rows = [row for epoch in range(3) for row in examples.epoch(epoch, range(examples.rows))]
    assert one["tokens"] == sum(len(row.prompt) + len(row.answer) for row in rows)
    assert one["vectors_read"] == sum(len(row.texts) for row in rows)


def test_operations_are_those_of_a_hand_count(tmp_path: Path, tiny: Path):
    """Batches of four, padded; each row reads its own vectors in both layers."""
    shape, width = architecture_of(str(tiny)), VectorEncoder.of(None, "mean").width
    found = {}
    for train, passes, loss in (("added", 2, "answer"), ("all", 3, "sequence"), ("all", 3, "answer")):
        spec = asked(tmp_path, tiny, train=train, epochs=1, out=tmp_path / f"{train} {loss}", loss=loss)
        trained(spec)
        log, told = json.loads((spec.out / LOG).read_text()), vector_settings_of(str(spec.out))
        assert told is not None
        tokens, examples, total = log["tokens"], VectorTraining.prepare(spec).examples, 0.0
        for start in range(0, examples.rows, 4):
            rows = examples.epoch(0, range(start, min(start + 4, examples.rows)))
            lengths, vectors = [len(r.prompt) + len(r.answer) for r in rows], [len(r.texts) for r in rows]
            computed, predicted = len(rows) * max(lengths), len(rows) * (max(len(r.answer) for r in rows) + 1)
            of_head = passes * predicted
            if loss == "sequence":  # logits of all tokens but each row's first are computed twice
                of_head = (passes + 1) * (sum(lengths) - len(rows))
            total += 2 * (passes * shape.parameters * computed + shape.hidden_width * shape.vocabulary * of_head)
            keys = sum(n * (n + 1) // 2 for n in lengths) + max(lengths) * sum(vectors)
            total += 3 * 4 * shape.heads_width * len(shape.windows) * keys
            projectors = width * shape.hidden_width * len(shape.windows)
            of_vectors = 3 * told.vector_parameters - projectors
            total += 2 * (3 * told.parameters * computed + of_vectors * len(rows) * max(vectors))
        assert log["flops"] == pytest.approx(total)
        trained_as = training_of(str(spec.out))
        assert trained_as is not None
        assert trained_as.decoder == (train == "all")
        found[train] = trained_as.cost
        assert found[train] == {
            "method": "vectors",
            "seconds": log["seconds"],
            "tokens": tokens,
            "flops": log["flops"],
            "trainable_parameters": log["trainable_parameters"],
        }
    assert found["all"]["trainable_parameters"] > found["added"]["trainable_parameters"]
    assert training_of(str(tiny)) is None


def test_the_decoder_is_trained_where_that_is_asked_for(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, train="all", epochs=1)
    trained(spec)
    frozen, after = (load_file(folder / "model.safetensors") for folder in (tiny, spec.out))
    assert not any(torch.equal(frozen[name], after[name]) for name in frozen if "layers" in name)


def test_the_decoders_own_weights_may_learn_more_slowly(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, train="all", decoder_rate=1e-5, epochs=1)
    trained(spec)
    frozen, after = (load_file(folder / "model.safetensors") for folder in (tiny, spec.out))
    names = [name for name in frozen if "proj" in name]
    apart = max(float((frozen[name] - after[name]).abs().max()) for name in names)
    assert 0 < apart < 1e-4
    wide = asked(tmp_path, tiny, train="all", epochs=1, out=tmp_path / "wide")
    trained(wide)
    after = load_file(wide.out / "model.safetensors")
    assert max(float((frozen[name] - after[name]).abs().max()) for name in names) > 1e-3


def test_the_encoder_is_trained_after_the_epochs_that_are_named(tmp_path: Path, tiny: Path):
    plain = load_file(Path(VectorEncoder.of(None, "mean").source) / "model.safetensors")
    spec = asked(tmp_path, tiny, epochs=2, unfreeze_after=1, learning_rate=1e-3, rows=24)
    trained(spec)
    after = load_file(spec.out / ENCODER / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    apart = (after[name] - plain[name]).abs().max()
    assert 0 < apart < 0.05
    told = vector_settings_of(str(spec.out))
    assert told is not None
    own = VectorEncoder.of_checkpoint(str(spec.out), told)
    assert own.source == str(spec.out / ENCODER)
    apart = (own.tensors(["a river"])["a river"] - VectorEncoder.of(None, "mean").tensors(["a river"])["a river"]).abs()
    assert apart.max() > 1e-4

    other = shutil.copytree(spec.out, tmp_path / "other")
    with (other / ENCODER / "config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match="was trained with other files of the encoder"):
        VectorEncoder.of_checkpoint(str(other), told)


def test_fewer_rows_are_the_first_of_all_and_see_demonstrations_of_all(tmp_path: Path, tiny: Path):
    """Of 20, two choose the checkpoint; what stands beside them is drawn as if all were asked."""
    every = VectorTraining.prepare(asked(tmp_path, tiny, text=2)).examples
    some = VectorTraining.prepare(asked(tmp_path, tiny, text=2, rows=20)).examples
    assert (some.rows, len(some.validation)) == (18, 2)
    order = every._order.tolist()
    shown = {row.prompt for row in some.epoch(0, range(18))}
    assert len(shown) == 18
    assert some._order.tolist() == order
    assert set(some.all_texts()) < set(every.all_texts())
    beside = [set(some._beside(index, "0").tolist()) for index in order[2:20]]
    assert set.union(*beside) - set(order[:20])


def test_without_vectors_the_decoder_alone_learns_from_the_same_rows(tmp_path: Path, tiny: Path):
    """The +0 of Chen et al. (2024, table 7): an ordinary checkpoint, whose training is known."""
    spec = asked(tmp_path, tiny, vectors=0, train="all", encoder=None, epochs=1)
    training = VectorTraining.prepare(spec)
    training.run()
    assert vector_settings_of(str(spec.out)) is None
    assert not (spec.out / WEIGHTS).parent.exists()
    frozen, after = (load_file(folder / "model.safetensors") for folder in (tiny, spec.out))
    assert not any(torch.equal(frozen[name], after[name]) for name in frozen if "layers" in name)
    told = training_of(str(spec.out))
    assert told is not None
    assert told.decoder
    assert told.cost["trainable_parameters"] == sum(w.numel() for w in after.values())
    beside = VectorTraining.prepare(asked(tmp_path, tiny, vectors=2, train="all", epochs=1))
    rows = [[(row.prompt, row.answer) for row in one.examples.epoch(0, range(4))] for one in (training, beside)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("before", "changes", "said"),
    [
        ("file", {}, "is not empty; give a new folder"),
        (STARTED, {}, "holds another training (vectors 3 instead of 2)"),
        (LOG, {}, "holds another training (vectors 3 instead of 2)"),
        (None, {"vectors": -1}, "--vectors -1: expected 0 or more"),
        (None, {"vectors": 0}, "--vectors 0: nothing would be trained; add --train all"),
        (None, {"decoder_rate": 1e-5}, "--decoder-rate: the decoder's own weights are frozen"),
        (None, {"decoder_rate": -1.0, "train": "all"}, "--decoder-rate -1.0: expected more than 0"),
        (None, {"rows": 1}, "--rows 1: expected 2 or more"),
        (None, {"unfreeze_after": 2}, "the encoder would never be trained"),
        (None, {"learning_rate": 0.0}, "--learning-rate 0.0"),
        (None, {"encoder": "/no/such/folder"}, "no such folder"),
        (None, {"dtype": "float16"}, "gradients exceed its range"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(
    tmp_path: Path, tiny: Path, before: str | None, changes: dict[str, Any], said: str
):
    out = tmp_path / "out"
    asked(tmp_path, tiny)  # writes the task
    if before is not None:
        there = {"file": out / "notes.txt", STARTED: out / CHECKPOINTS / STARTED, LOG: out / LOG}[before]
        there.parent.mkdir(parents=True, exist_ok=True)
        started = VectorTraining.prepare(asked(tmp_path, tiny, vectors=3)).folder.settings
        there.write_text(json.dumps({"settings": started} if before == LOG else started))
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as refused:
        VectorTraining.prepare(asked(tmp_path, tiny, **changes)).folder.is_done()
    assert said in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == files


def test_a_folder_of_a_task_with_another_template_is_left_alone(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny)
    VectorTraining.prepare(spec).folder.begin()
    assert not VectorTraining.prepare(spec).folder.is_done()
    file = Path(spec.task)
    told = json.loads(file.read_text())
    told["template"]["input"] = f"Please. {told['template']['input']}"
    file.write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"holds another training .prompt_form"):
        VectorTraining.prepare(spec).folder.is_done()


def test_losses_that_are_no_numbers_end_it_in_one_line(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, learning_rate=1e30)
    with pytest.raises(UserError, match=r"is infinite or NaN.*smaller --learning-rate"):
        VectorTraining.prepare(spec).run()


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path):
    assert vector_settings_of(str(tmp_path)) is None
    (tmp_path / SETTINGS).write_text('{"encoder": 3}')
    with pytest.raises(UserError, match=r"vectors.json: cannot be read"):
        vector_settings_of(str(tmp_path))


def test_checkpoints_hold_only_what_is_learnt(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, epochs=1)
    training = VectorTraining.prepare(spec)
    seen: dict[str, Any] = {}

    def look(_: str) -> None:
        if (best := spec.out / CHECKPOINTS / BEST_WEIGHTS).exists():
            seen.update(load_file(best))

    training.run(look)
    assert seen
    assert all(name.startswith("readers.") for name in seen)
