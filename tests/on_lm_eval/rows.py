"""Small rows for tasks of lm-evaluation-harness, by the path of their files in its package.

All rows have the same columns, with texts of their own; ``OWN`` says what a task wants otherwise.
A function makes a row's value of its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Value = Callable[[int], Any]
LETTERS = "ABCD"


def _text(name: str) -> Value:
    return lambda n: f"The {name} of row {n}: “{n * 7 % 5} × ü”, isn't it?"


def _texts(name: str, count: int) -> Value:
    return lambda n: [f"{name} {n}.{i} ({'x' * (i + 1)})" for i in range(count)]


def _labelled(name: str, count: int) -> Value:
    return lambda n: {"text": _texts(name, count)(n), "label": list("ABCDE"[:count])}


def _index(count: int) -> Value:
    return lambda n: n % count


def _letter(n: int) -> str:
    return LETTERS[n % 4]


def _words(text: str) -> list[str]:
    return text.split()


COLUMNS: dict[str, Value] = {
    **{
        name: _text(name)
        for name in _words(
            "question Question passage premise hypothesis text query context sentence sentence1 sentence2 "
            "input prompt goal source support instruction startphrase Sentence pronoun qtext document_str "
            "question_str question_stem flores_passage prompt_serial inputs input_sentence_1 "
            "input_sentence_2 input_sentence_3 input_sentence_4 idx"
        )
    },
    **{
        name: lambda n, name=name: f"{name} is {n}"
        for name in _words(
            "A B C D E sol1 sol2 solution0 solution1 mc_answer1 mc_answer2 mc_answer3 mc_answer4 option_a "
            "option_b option_c option_d distractor1 distractor2 distractor3 correct_answer answerA answerB "
            "answerC ending0 ending1 ending2 ending3 ending_good ending_bad sentence_quiz1 sentence_quiz2 "
            "occupation participant target correction completion sentence_cat_Latn sentence_por_Latn "
            "solution"
        )
    },
    "choices": _texts("choice", 4),
    "candidates": _texts("candidate", 4),
    "label": _index(2),
    "Label": _index(2),
    "answer": _index(4),
    "Answer": _letter,
    "answerKey": _letter,
}

Own = Mapping[str, Value]
_ARC: Own = {"choices": _labelled("choice", 4)}

OWN: dict[str, Own] = {
    "aclue/aclue_ancient_chinese_culture.yaml": {},
    "aexams/aexams_Biology.yaml": {"answer": _letter},
    "afrobench/adr/prompt_1/afridiacritics_bbj.yaml": {},
    "alghafa/copa_ar/copa_ar.yaml": {},
    "anli/anli_r1.yaml": {"label": _index(3)},
    "arc/arc_challenge.yaml": _ARC,
    "arc/arc_easy.yaml": _ARC,
    "babi/babi.yaml": {"answer": lambda n: f"garden {n}"},
    "bangla/bangla_boolqa.yaml": {"answer": lambda n: n % 2},
    "basqueglue/qnli.yaml": {},
    "belebele/belebele_acm_Arab.yaml": {"correct_answer_num": lambda n: str(n % 4 + 1)},
    "bertaqa/bertaqa_en.yaml": {"answer": _index(3)},
    "bhs/basque-DO-S_DO_V_AUX.yaml": {},
    "bigbench/generate_until/abstract_narrative_understanding.yaml": {
        "targets": lambda n: [f"target {n}", f"other {n}"]
    },
    "commonsense_qa/default.yaml": {"choices": _labelled("choice", 5), "answerKey": lambda n: "ABCDE"[n % 5]},
    "french_bench/french_bench_arc_challenge.yaml": {},
    "glue/mrpc/default.yaml": {},
    "gsm8k/gsm8k.yaml": {"answer": lambda n: f"{n} and {n} are <<{n}+{n}={2 * n}>>.\n#### {2 * n}"},
    "haerae/haerae_gk.yaml": {"answer": lambda n: f"({LETTERS[n % 4]})"},
    "headqa/headqa_en.yaml": {
        "answers": lambda n: [{"aid": i, "atext": f"answer {n}.{i}"} for i in range(3)],
        "ra": lambda n: n % 3 + 1,
    },
    "hendrycks_ethics/commonsense.yaml": {},
    "inverse_scaling/inverse_scaling_hindsight_neglect.yaml": {
        "classes": lambda _: ["Y", "N"],
        "answer_index": _index(2),
    },
    "japanese_leaderboard/ja_leaderboard_jaqket_v2.yaml": {
        "ctxs": lambda n: {"text": [f"文脈 {n}", f"文脈 {n + 1}"]},
        "answers": lambda n: {"text": [f"答え{n}", "別"]},
    },
    "kmmlu/default/kmmlu_accounting.yaml": {"answer": lambda n: n % 4 + 1},
    "legalbench/abercrombie.yaml": {"answer": lambda n: ["generic", "fanciful"][n % 2]},
    "mc_taco/default.yaml": {"answer": lambda n: f"{n} hours"},
    "mmlu/default/mmlu_anatomy.yaml": {},
    "mmlu/continuation/mmlu_abstract_algebra.yaml": {},
    "nq_open/nq_open.yaml": {"answer": lambda n: [f"name {n}", f"Sir Name {n}", "it's O'Brien"]},
    "openbookqa/openbookqa.yaml": {**_ARC, "answerKey": lambda n: f" {LETTERS[n % 4]}"},
    "piqa/piqa.yaml": {},
    "portuguese_bench/flores_pt/flores_ca-pt.yaml": {},
    "qa4mre/qa4mre_2011.yaml": {
        "correct_answer_id": lambda n: str(n % 3 + 1),
        "answer_options": lambda n: {"answer_str": _texts("option", 3)(n)},
    },
    "sciq/sciq.yaml": {"support": lambda n: f"  Support {n}."},
    "siqa/siqa.yaml": {"label": lambda n: str(n % 3 + 1)},
    "spanish_bench/escola.yaml": {},
    "storycloze/storycloze_2016.yaml": {"answer_right_ending": lambda n: n % 2 + 1},
    "super_glue/boolq/default.yaml": {},
    "swag/swag.yaml": {"label": _index(4)},
    "toksuite/toksuite_chinese/toksuite_chinese_canonical.yaml": {},
    "translation/iwslt2017_ar-en.yaml": {"translation": lambda n: {"ar": f"جملة {n}", "en": f"Sentence {n}."}},
    "triviaqa/default.yaml": {"answer": lambda n: {"aliases": [f"Alias {n}", f"alias {n}"]}},
    "truthfulqa-multi/truthfulqa-multi_mc1_ca.yaml": {
        "mc1_targets": lambda n: {"choices": _texts("claim", 3)(n), "labels": [1, 0, 0]}
    },
    "turkishmmlu/config/Biology.yaml": {"answer": lambda n: "ABCDE"[n % 5], "choices": _texts("choice", 5)},
    "unscramble/anagrams1.yaml": {},
    "winogender/winogender.yaml": {"pronoun": lambda n: ["she", "they"][n % 2]},
    "wmdp/wmdp_bio.yaml": {},
}


FREE = (
    "gsm8k/gsm8k.yaml",
    "legalbench/abercrombie.yaml",
    "nq_open/nq_open.yaml",
    "triviaqa/default.yaml",
    "unscramble/anagrams1.yaml",
    "babi/babi.yaml",
)
"""Tasks whose free answers are compared with the right ones."""


def answers(right: str) -> list[str]:
    """Texts that are right, nearly right and wrong."""
    return [
        right,
        right.upper(),
        f"{right}.",
        f"The answer is {right}",
        right[:-1],
        "#### 12",
        "x",
        f"so 3 + 9 = 12.\n#### {right.split()[-1]}",
    ]


def rows(task: str, numbers: range) -> list[dict[str, Any]]:
    """Rows of a task, by their numbers."""
    made = {**COLUMNS, **OWN[task]}
    return [{name: value(n) for name, value in made.items()} for n in numbers]


def as_lines(found: list[dict[str, Any]]) -> str:
    """Rows as a file has them."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found)
