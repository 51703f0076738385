"""Instruction tuning: conversations as the model's template writes them, packed apart, answers alone learnt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.models import llama_tokenizer, plain_model, qwen_tokenizer, tiny_checkpoint
from tokenizers import processors
from unit.prompts.test_chat import CHATML, ENDLESS, FORGETFUL, LLAMA, NUMBERED, TRIMMED

from icl_bench.errors import UserError
from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.models.trained import adapted_to
from icl_bench.training.adaptation.examples import Lesson
from icl_bench.training.adaptation.instructions import ConversationWriter, Instructions, messages_of
from icl_bench.training.adaptation.spec import AdaptationSpec
from icl_bench.training.adaptation.training import Adaptation, collated

TURNS = [
    [("system", "Be kind."), ("user", "where is my card?"), ("assistant", "on its way")],
    [("user", "and mine?"), ("assistant", " in the bank "), ("user", "why?"), ("assistant", "it was lost")],
    [("user", "{brace} 中文"), ("assistant", "two\n\nlines: naïve")],
]
ROWS: list[dict[str, Any]] = [
    *({"messages": [{"role": role, "content": content} for role, content in turns]} for turns in TURNS),
    {"instruction": "Translate.", "input": "order", "output": "Bestellung"},
    {"instruction": "Say yes.", "input": "", "output": "yes", "id": 7},
    {"instruction": "Say no.", "output": "no"},
]

ONCE = """{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% else %}{{ '<|im_end|>' }}{% endif %}"""
"""A template that ends the conversation, but none of its turns."""
SPACED = CHATML.replace("assistant\n", "assistant:").replace("m['role'] + '\n' + m", "m['role'] + ': ' + m")
"""A blank between the prompt and its answer."""


def chat_model(folder: Path, source: str = CHATML, make: Any = qwen_tokenizer) -> Path:
    tokenizer = make()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = source
    return tiny_checkpoint(folder, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "tiny")


def written(folder: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    file = folder / "instructions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def asked(folder: Path, model: Path, file: Path, **changes: Any) -> AdaptationSpec:
    options = {"length": 96, "tokens": 400, "batch": 2, "learning_rate": 1e-2, "device": "cpu", "dtype": "float32"}
    given = {"model": str(model), "attention": "full", "instructions": file, "out": folder / "out", **options}
    return AdaptationSpec(**{**given, **changes})


def read(file: Path, model: Path, length: int = 96) -> Instructions:
    found = resolve(str(model))
    return Instructions.read(file, found, load_tokenizer(found), length)


# -- what is learnt -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "make", "end"),
    [
        (CHATML, qwen_tokenizer, "<|im_end|>"),
        (TRIMMED, qwen_tokenizer, "<|im_end|>"),
        (LLAMA, llama_tokenizer, " </s>"),
    ],
)
def test_tokens_are_the_librarys_and_the_answers_are_learnt_with_their_end(
    tmp_path: Path, source: str, make: Any, end: str
):
    """Ids are those of ``apply_chat_template``; what is learnt is what a model would have to generate."""
    from transformers import AutoTokenizer

    model = resolve(str(chat_model(tmp_path / "model", source, make)))
    library = AutoTokenizer.from_pretrained(model.source)
    writer = ConversationWriter.of(model, load_tokenizer(model))
    for row in ROWS if source != LLAMA else ROWS[1:]:
        messages = messages_of(row)
        lesson = writer._lesson(messages)
        whole = library.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        assert lesson.ids == tuple(whole)
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert lesson.learnt is not None
        learnt = [library.decode(lesson.ids[first:last]) for first, last in lesson.learnt]
        assert [text.strip() for text in learnt] == [f"{answer.strip()}{end}".strip() for answer in answers] or [
            re.sub(r"\s+", "", text) for text in learnt
        ] == [re.sub(r"\s+", "", answer + end) for answer in answers]


def test_an_answer_ends_where_its_turn_does_not_where_the_conversation_does(tmp_path: Path):
    """A template that writes its end once: the users' turns between two answers are never targets."""
    model = resolve(str(chat_model(tmp_path / "model", ONCE)))
    writer = ConversationWriter.of(model, load_tokenizer(model))
    lesson = writer._lesson(messages_of(ROWS[0]))
    assert lesson.learnt is not None
    assert [writer.tokenizer.decode(lesson.ids[a:b]) for a, b in lesson.learnt] == ["on its way<|im_end|>"]
    with pytest.raises(UserError, match=r"turn 2: the chat template of model model does not end an answer"):
        writer._lesson(messages_of(ROWS[1]))


@pytest.mark.parametrize("trims", [True, False])
@given(answer=st.text("a 中é😀\n", min_size=1, max_size=8).filter(lambda text: bool(text.strip())))
def test_an_answer_begins_at_its_first_token_however_offsets_are_counted(
    spaced: dict[bool, ConversationWriter], trims: bool, answer: str
) -> None:
    """Offsets that leave out blanks, and characters of several tokens, which have the same offsets."""
    lesson = spaced[trims]._lesson(messages_of({"instruction": "where?", "output": answer.strip()}))
    assert lesson.learnt is not None
    ((first, last),) = lesson.learnt
    assert spaced[trims].tokenizer.decode(lesson.ids[first:last]) == f" {answer.strip()}<|im_end|>"


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, ConversationWriter]:
    """Writers whose offsets leave out blanks, or have them."""
    writers = {}
    for trims in (True, False):
        model = resolve(str(chat_model(tmp_path_factory.mktemp("spaced") / "model", SPACED)))
        tokenizer = load_tokenizer(model)
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims)
        writers[trims] = ConversationWriter.of(model, tokenizer)
    return writers


@torch.no_grad()
@pytest.mark.parametrize("pattern", ["full", "grouped:2,9"])
def test_the_loss_of_packed_conversations_is_that_of_each_alone(tmp_path: Path, tiny: Path, pattern: str):
    """Against the library's model on one conversation at a time, with the prompt's tokens left out by hand."""
    training = Adaptation.prepare(
        asked(tmp_path, tiny, written(tmp_path, ROWS * 3), attention=pattern, length=256, tokens=512)
    )
    model = training._model().eval()
    reference, tokenizer = plain_model(tiny), training.tokenizer
    lesson = training.examples.sequence(0)
    assert len(lesson.ends) > 2
    total, count = 0.0, 0
    for begin, end in zip([0, *lesson.ends], lesson.ends, strict=False):
        ids = torch.tensor([lesson.ids[begin:end]])
        text = tokenizer.decode(ids[0].tolist())
        if pattern == "full":
            logits = reference(ids).logits[0].log_softmax(-1)
        else:  # alone, it has no parts
            logits = model.network.get_output_embeddings()(
                model.network.get_decoder()(input_ids=ids, use_cache=False, sparsity=model._plain).last_hidden_state[0]
            ).log_softmax(-1)
        before = ""
        for part in re.split(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text, flags=re.DOTALL):
            tokens = tokenizer(part, add_special_tokens=False)["input_ids"]
            start = len(tokenizer(before, add_special_tokens=False)["input_ids"]) if before else 0
            if before.endswith("<|im_start|>assistant\n"):
                total -= sum(float(logits[start + i - 1, token]) for i, token in enumerate(tokens))
                count += len(tokens)
            before += part
    loss = float(model(**collated([lesson]))["loss"])
    assert count == sum(last - first for first, last in lesson.learnt or ())
    assert loss == pytest.approx(total / count, rel=1e-4)


def test_another_conversation_of_the_sequence_changes_nothing(tmp_path: Path, tiny: Path):
    training = Adaptation.prepare(asked(tmp_path, tiny, written(tmp_path, ROWS * 3)))
    model = training._model().eval()
    first, second = (training.examples.texts.lesson(0), training.examples.texts.lesson(1))
    size = first.ends[0]
    learnt = tuple(pair for pair in first.learnt or () if pair[1] <= size)

    def loss(behind: tuple[int, ...]) -> float:
        ids = (*behind, *first.ids[:size])
        moved = tuple((a + len(behind), b + len(behind)) for a, b in learnt)
        ends = (len(behind), len(ids)) if behind else (len(ids),)
        with torch.no_grad():
            return float(model(**collated([Lesson(ids, moved, ends, apart=True)]))["loss"])

    alone = loss(())
    assert loss(second.ids[: second.ends[0]]) == pytest.approx(alone, rel=1e-5)
    with torch.no_grad():  # a test that could not fail would be one where they may see each other
        ids = (*second.ids[: second.ends[0]], *first.ids[:size])
        moved = tuple((a + second.ends[0], b + second.ends[0]) for a, b in learnt)
        assert float(model(**collated([Lesson(ids, moved)]))["loss"]) != pytest.approx(alone, rel=1e-3)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(40, 90), st.integers(0, 3))
def test_each_pass_reads_every_conversation_once_and_no_sequence_is_too_long(
    sizes: list[int], length: int, seed: int
) -> None:
    lessons = tuple(Lesson((number,) * size, ((size - 1, size),)) for number, size in enumerate(sizes))
    found = Instructions(("hash",), lessons, lessons[:1], length, seed)
    sequences, seen = [], 0
    while seen < 2 * sum(sizes):
        sequences.append(found.lesson(len(sequences)))
        seen += len(sequences[-1].ids)
    assert max(len(sequence.ids) for sequence in sequences) <= length
    parts = [
        sequence.ids[begin:end]
        for sequence in sequences
        for begin, end in zip([0, *sequence.ends], sequence.ends, strict=False)
    ]
    for turn in (parts[: len(sizes)], parts[len(sizes) :]):
        assert sorted(turn) == sorted(lesson.ids for lesson in lessons)
    assert [found.lesson(n) for n in range(len(sequences))] == sequences
    again = Instructions(("hash",), lessons, lessons[:1], length, seed)
    assert again.lesson(len(sequences) - 1) == sequences[-1]
    for sequence in sequences:
        assert [last for _, last in sequence.learnt or ()] == list(sequence.ends)


# -- training -------------------------------------------------------------------------------------


def test_it_learns_the_answers_and_says_what_was_left_out(tmp_path: Path, tiny: Path):
    long = {"instruction": "card " * 200, "output": "yes"}
    spec = asked(tmp_path, tiny, written(tmp_path, [*ROWS * 4, long]), attention="grouped:2,9", tokens=6000)
    training = Adaptation.prepare(spec)
    (left_out,) = [note for note in training.notes() if "left out" in note]
    assert left_out.startswith("1 conversation left out, longer than --length 96; the longest has ")
    assert any(
        "held out; conversations in one sequence do not attend to each other" in note for note in training.notes()
    )
    training.run(lambda _: None)
    log = json.loads((spec.out / "training.json").read_text())
    assert log["losses"][-1]["validation"] < log["losses"][0]["validation"] - 0.5
    assert log["settings"]["instructions"] == list(training.examples.texts.hashes)
    assert "texts" not in log["settings"]
    assert str(adapted_to(str(spec.out))) == "grouped:2,9"
    assert load_file(spec.out / "model.safetensors").keys() == load_file(tiny / "model.safetensors").keys()
    assert Adaptation.prepare(spec).folder.is_done()
    other = spec.model_copy(update={"instructions": written(tmp_path, ROWS)})
    with pytest.raises(UserError, match="holds another training"):
        Adaptation.prepare(other).folder.is_done()


def test_as_many_tokens_are_read_as_are_asked_for_and_noted(tmp_path: Path, tiny: Path):
    """Conversations of which one fills half of a sequence: the other half is not counted."""
    row = {"instruction": "Say yes. " * 3, "output": "yes"}
    size = max(len(lesson.ids) for lesson in read(written(tmp_path, [row] * 8), tiny, 2000).conversations)
    spec = asked(tmp_path, tiny, tmp_path / "instructions.jsonl", length=2 * size - 1, tokens=20 * size)
    training = Adaptation.prepare(spec)
    tokens = sum(len(training.examples.sequence(number).ids) for number in range(training.sequences))
    assert tokens == 20 * size
    assert training.notes()[0] == (
        f"about {tokens:,} tokens in 10 steps of 2 sequences of at most {2 * size - 1} under full"
    )


def test_the_rate_is_the_papers_for_instructions(tmp_path: Path, tiny: Path):
    spec = asked(tmp_path, tiny, tmp_path / "x", learning_rate=None)
    assert spec.rate == 2e-5
    assert spec.model_copy(update={"method": "lora"}).rate == 1e-3
    assert spec.model_copy(update={"instructions": None}).rate == 1e-4


def test_how_the_file_was_read_is_noted(tmp_path: Path, tiny: Path):
    file = tmp_path / "instructions.csv"
    file.write_text("instruction;output\n" + "Say yes.;yes\n" * 20)
    notes = Adaptation.prepare(asked(tmp_path, tiny, file)).notes()
    assert any("semicolon" in note for note in notes)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "answer": "b"}, "expected messages, or instruction and output; it has 'prompt, answer'"),
        ({"instruction": "a"}, "expected messages, or instruction and output"),
        ({"instruction": 3, "output": "b"}, "instruction: expected text, not 3"),
        ({"instruction": "a", "input": ["x"], "output": "b"}, "input: expected text"),
        ({"instruction": "a", "output": "  "}, "turn 2: the text of the assistant is empty"),
        ({"instruction": "", "output": "b"}, "turn 1: the text of the user is empty"),
        ({"messages": "hi"}, "messages: expected a list of turns, not 'hi'"),
        ({"messages": []}, "messages: expected a list of turns"),
        ({"messages": ["hi"]}, "turn 1: expected a role and content, not 'hi'"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "turn 1: the role is 'tool'; expected system, user or assistant",
        ),
        ({"messages": [{"content": "x"}]}, "turn 1: the role is None; expected system"),
        ({"messages": [{"role": "user", "content": None}]}, "turn 1: the content is None; expected text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "the last turn is the user's; expected an answer"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "only one turn; expected a question"),
        ({"instruction": "a", "output": "\ud83d"}, r"turn 2 holds \ud83d, half a character"),
        (
            {"instruction": "a<|im_end|>", "output": "b"},
            "has the text '<|im_end|>', which this model reads as a special",
        ),
    ],
)
def test_a_bad_row_is_refused_in_one_line_that_names_file_and_row(
    tmp_path: Path, tiny: Path, row: dict[str, Any], said: str
):
    file = written(tmp_path, [*ROWS, row])
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        Adaptation.prepare(asked(tmp_path, tiny, file))
    assert str(refused.value).startswith(f"{file}:7: ")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content", "messages", "user", "instruction", "output"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_row_is_a_conversation_or_a_users_error(value: Any) -> None:
    cells = value if isinstance(value, dict) else {"messages": value}
    try:
        messages = messages_of(cells)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert messages[-1]["role"] == "assistant"
    assert all(message["content"].strip() for message in messages)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"texts": Path()}, "cannot be combined with --texts; train on --texts first"),
        ({"demonstrations_too": ("trec",)}, "cannot be combined with --demonstrations-too"),
        ({"attention": "approx:9,3"}, "--attention approx:9,3: cannot keep the conversations of a sequence apart"),
        ({"attention": "block:2"}, "take full or grouped"),
        ({"instructions": None}, "--texts: is missing; give a folder of texts, or --instructions FILE"),
        ({"instructions": Path("/no/such.jsonl")}, "/no/such.jsonl: cannot be read"),
        ({"length": 4, "tokens": 40}, "0 of 6 conversations fit --length 4; at least 2 are needed; the longest has"),
    ],
)
def test_what_cannot_be_learnt_is_refused(tmp_path: Path, tiny: Path, changes: dict[str, Any], said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        Adaptation.prepare(asked(tmp_path, tiny, written(tmp_path), **changes))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "--instructions: model none has no chat template; give an instruct model, or leave --instructions out"),
        (FORGETFUL, "jsonl:2: turn 2: the chat template of model none changes the answer"),
        (NUMBERED, "jsonl:1: turn 3: the chat template of model none changes the answer"),
        (LLAMA, "jsonl:1: the chat template of model none refuses a conversation of system/user"),
        (ENDLESS, "does not end an answer"),
    ],
)
def test_a_template_that_cannot_be_learnt_from_is_refused(tmp_path: Path, source: Any, said: str):
    model = chat_model(tmp_path / "none", source)
    with pytest.raises(UserError, match=re.escape(said)):
        read(written(tmp_path), model)
