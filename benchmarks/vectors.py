"""Does a model read what stands in vectors alone? A made task that nothing else can solve.

    python benchmarks/vectors.py [--vectors 8] [--rows 20000] [--epochs 2] [--train all]
                                 [--model NAME | --hidden 256 --layers 2] [--keep DIR]

Every question has N texts ("word: apple / colour: red") and names one of the words; words, colours
and which belong together are drawn anew for each, so that no assignment can be remembered. A small
decoder (random weights unless ``--model`` names one) is trained by ``train-vectors``, then asked by
``run`` on assignments that it has never seen: with the vectors, and without. Ends with 1 where it
has less than 90% with them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "chair",
    "candle",
    "window",
    "garden",
    "bottle",
    "pencil",
    "rabbit",
    "engine",
    "hammer",
    "island",
    "jacket",
    "kitten",
    "ladder",
    "mirror",
    "needle",
    "orange",
    "pillow",
    "quartz",
    "rocket",
    "saddle",
    "tunnel",
    "violin",
    "wallet",
    "basket",
    "copper",
    "dragon",
]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "purple"]

TASK = """\
name: colours
data:
  train: train.jsonl
  test: test.jsonl
  fields: {word: word, colour: colour}
  passages: {column: texts}
template:
  input: "{word}"
  output: "is {colour}"
  separator: "\\n"
labels: {style: as-is}
metrics: [accuracy]
test: {size: 250, seed: 1}
"""


def write_task(folder: Path, vectors: int, rows: int, seed: int = 0) -> Path:
    """The task's file, with so many train rows and 500 test rows, of ``vectors`` texts each."""
    rng = np.random.default_rng(seed)
    for split, count in {"train": rows, "test": 500}.items():
        lines = []
        for _ in range(count):
            words = [WORDS[i] for i in rng.permutation(len(WORDS))[:vectors]]
            colours = [COLOURS[i] for i in rng.integers(len(COLOURS), size=vectors)]
            asked = int(rng.integers(vectors))
            texts = [f"word: {w} / colour: {c}" for w, c in zip(words, colours, strict=True)]
            lines.append({"word": words[asked], "colour": colours[asked], "texts": texts})
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    file = folder / "colours.yaml"
    file.write_text(TASK)
    return file


def write_decoder(folder: Path, hidden: int, layers: int, seed: int = 0) -> Path:
    """A Llama of random weights with a small tokenizer, byte-level, trained on the task's words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    pairs = [f"{w}\nis {c}\n" for w in WORDS for c in COLOURS]
    pieces.train_from_iterator(pairs, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def accuracy(task: Path, model: Path, attention: str, results: Path) -> float:
    """Of the test rows, as ``run`` finds it."""
    import icl_bench
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    backend = BackendSpec(backend="transformers", dtype="float32", device="cpu")
    spec = RunSpec(task=str(task), model=str(model), k="0", draws=1, attention=attention, backend=backend)
    Sweep.prepare(spec).run(results)
    frame = icl_bench.read(results).predictions
    return float(frame.loc[frame["attention"] == attention, "correct"].mean())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vectors", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--train", default="all")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--model")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    from icl_bench.quiet_libraries import hush_libraries
    from icl_bench.training.vectors.spec import VectorSpec
    from icl_bench.training.vectors.training import VectorTraining

    hush_libraries()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        task = write_task(folder, asked.vectors, asked.rows)
        model = asked.model or str(write_decoder(folder / "decoder", asked.hidden, asked.layers))
        spec = VectorSpec(
            task=str(task),
            model=model,
            out=folder / "reader",
            vectors=asked.vectors,
            pooling=asked.pooling,
            train=asked.train,
            epochs=asked.epochs,
            batch=asked.batch,
            learning_rate=asked.rate,
            device="cpu",
            dtype="float32",
        )
        training, start = VectorTraining.prepare(spec), time.perf_counter()
        if not training.folder.is_done():
            training.run(print)
        print(f"trained in {time.perf_counter() - start:,.0f} s")
        with_them = accuracy(task, spec.out, f"vectors:{asked.vectors}", folder / "results")
        without = accuracy(task, spec.out, "full", folder / "results")
    print(
        f"accuracy: {with_them:.1%} with {asked.vectors} vectors, {without:.1%} without (chance {1 / len(COLOURS):.1%})"
    )
    sys.exit(with_them < 0.9)


if __name__ == "__main__":
    main()
