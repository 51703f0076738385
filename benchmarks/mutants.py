"""Which faults that change one place of the code would no test notice? By mutmut.

    python benchmarks/mutants.py [GROUP ...] [--minutes 20] [--most 150] [--seed 0] [--show]

A group is some modules and the tests that are about them. mutmut changes one operator, number,
name or argument at a time, and runs the tests that reach the function that it is in. Where a module
has more than ``--most`` such mutants, a sample of them is taken, the same for the same seed. All is
done in copies under ``build/mutants``, one for each group: what was killed there is not tried again
for as long as the function stays as it is; what survived is. Prints a table of Markdown and, with
``--show``, what survived.

mutmut does not change constants of a module, nor functions with a decorator (properties).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mutants"
KILLED = (1, 3)
"""What mutmut notes of a mutant that a test noticed. All else survived: tests that ran out of time
may have been slow for another reason."""
COPIED = ("icl_bench", "tests", "tasks", "pyproject.toml")


class Group(NamedTuple):
    """Modules of the package and the tests that are about them."""

    modules: Sequence[str]
    tests: Sequence[str]
    which: str = ""
    """Which of these tests, as pytest's ``-k``: those that are quick."""


GROUPS: Mapping[str, Group] = {
    "metrics": Group(["metrics/macro_f1", "metrics/rouge", "metrics/scores"], ["unit/metrics"]),
    "answered": Group(
        ["metrics/exact_match", "metrics/exact_text", "metrics/f1", "metrics/numeric", "metrics/bleu", "metrics/chrf"],
        ["unit/metrics"],
    ),
    "bertscore": Group(["metrics/bertscore"], ["unit/metrics", "differential/test_metrics_libraries.py"]),
    "prompts": Group(["prompts/encoding", "prompts/rendering"], ["unit/prompts"], "not gemma and not for_any_text"),
    "cost": Group(
        ["sweep/compute_cost", "sweep/time_estimate", "analysis/findings/cost", "analysis/cell_cost"],
        ["unit/sweep/test_compute_cost.py", "unit/sweep/test_time_estimate.py", "unit/analysis/findings/test_cost.py"],
    ),
    "results": Group(
        ["results/cells", "results/reading"], ["unit/results/test_cells.py", "unit/results/test_reading.py"]
    ),
    "files": Group(
        [*(f"results/importing/{name}" for name in ("answers", "checks", "columns", "tables")), "results/exporting"],
        ["unit/results/test_importing.py", "unit/results/test_imported_answers.py", "unit/results/test_exporting.py"],
        "not any_complete_sweep and not frame_of_anything and not arbitrary_bytes "
        "and not changed_parquet_file and not whatever_happens",
    ),
    "store": Group(
        ["results/storage", "results/journals", "results/store"],
        ["unit/results/test_storage.py", "unit/results/test_store.py"],
        "not values_of_other_kinds",  # mutmut does not find its names again
    ),
    "curves": Group(
        [
            "analysis/curves",
            "analysis/findings/saturation",
            "analysis/statistics/shares",
            "analysis/statistics/bootstrap",
        ],
        [
            "unit/analysis/test_curves.py",
            "unit/analysis/findings/test_saturation.py",
            "unit/analysis/statistics/test_shares.py",
            "unit/analysis/statistics/test_bootstrap.py",
        ],
    ),
    "answers": Group(
        ["analysis/findings/order", "analysis/findings/calibration", "analysis/findings/label_bias"],
        [
            "unit/analysis/findings/test_order.py",
            "unit/analysis/findings/test_calibration.py",
            "unit/analysis/findings/test_label_bias.py",
        ],
    ),
    "draws": Group(
        ["analysis/draws", "analysis/missing", "analysis/findings/best_points", "analysis/zero_shot"],
        [
            "unit/analysis/test_draws.py",
            "unit/analysis/test_missing.py",
            "unit/analysis/findings/test_best_points.py",
            "unit/analysis/test_zero_shot.py",
        ],
    ),
    "statistics": Group(
        [
            "analysis/statistics/moderation",
            "analysis/statistics/draw_ratios",
            "analysis/statistics/best",
            "analysis/statistics/gaps",
        ],
        [
            "unit/analysis/statistics/test_moderation.py",
            "unit/analysis/statistics/test_best.py",
            "unit/analysis/statistics/test_gaps.py",
        ],
        "not half_as_much_again and not false_alarms and not 93_times and not their_level and not move_the_mean",
    ),
    "intervals": Group(
        [
            "analysis/statistics/contrast",
            "analysis/statistics/grid",
            "analysis/statistics/intervals",
            "analysis/statistics/mean_squares",
            "analysis/statistics/paired",
        ],
        [
            "unit/analysis/statistics/test_contrast.py",
            "unit/analysis/statistics/test_grid.py",
            "unit/analysis/statistics/test_intervals.py",
            "unit/analysis/statistics/test_mean_squares.py",
            "unit/analysis/statistics/test_paired.py",
            "unit/analysis/test_draws.py",
        ],
        "not false_alarms and not their_level and not timidly and not 93_to_97 and not too_wide "
        "and not on_average and not far_too_sure",
    ),
    "regression": Group(
        ["analysis/regression"],
        ["unit/analysis/test_regression.py"],
        "not of_trials and not at_most_5 and not small_in_each and not six_points",
    ),
    "baseline": Group(
        ["analysis/baseline_check"], ["unit/analysis/test_baseline_check.py"], "not whatever_facts and not damaged_file"
    ),
    "advice": Group(
        ["analysis/advice"],
        ["unit/analysis/test_advice.py", "unit/analysis/test_zero_shot.py"],
        "not hardly_ever_advised and not is_found_with_ten_draws",
    ),
    "comparisons": Group(
        ["analysis/findings/comparisons"],
        [
            "unit/analysis/statistics/test_paired.py",
            "unit/analysis/test_draws.py",
            "unit/analysis/test_free_text.py",
            "unit/analysis/findings/test_learning_ratio.py",
            "unit/analysis/test_published.py",
            "unit/analysis/test_zero_shot.py",
        ],
    ),
    "frontier": Group(
        ["analysis/frontier", "analysis/query_cost", "analysis/cascade"],
        ["unit/analysis/test_frontier.py", "unit/analysis/test_cascade.py"],
    ),
    "forecast": Group(
        ["analysis/findings/forecast", "analysis/statistics/local_trend"],
        ["unit/analysis/findings/test_forecast.py", "unit/analysis/statistics/test_local_trend.py"],
    ),
    "chat": Group(["prompts/chat", "prompts/chat_template"], ["unit/prompts/test_chat.py"]),
    "objects": Group(
        ["results/object_storage"],
        ["unit/results/test_object_storage_in_memory.py"],  # after a fork requests to a server hang
    ),
    "facts": Group(
        [
            "results/facts",
            "results/stored_meta",
            "results/perplexity_losses",
            "results/studies",
            "results/trained_methods",
            "metrics/interface",
        ],
        ["unit/results/test_stored_meta.py", "unit/results/test_studies.py", "unit/metrics"],
    ),
    "alike": Group(
        ["analysis/statistics/alike", "analysis/statistics/meeting", "analysis/statistics/special"],
        [
            "unit/analysis/statistics/test_alike.py",
            "unit/analysis/statistics/test_special.py",
            "unit/analysis/statistics/test_meeting.py",
            "unit/analysis/statistics/test_paired.py",
            "unit/analysis/statistics/test_best.py",
            "unit/analysis/statistics/test_shares.py",
            "unit/analysis/findings/test_saturation.py",
        ],
        "not half_as_much_again and not false_alarms and not 93_times and not their_level "
        "and not timidly and not 93_to_97 and not too_wide and not on_average",
    ),
    "readings": Group(
        [
            "analysis/findings/attention",
            "analysis/context",
            "analysis/findings/demonstrations",
            "analysis/findings/chat",
            "analysis/findings/learning_ratio",
            "analysis/findings/replication",
            "analysis/findings/truncated_answers",
        ],
        [
            "unit/analysis/findings/test_attention.py",
            "unit/analysis/findings/test_demonstrations.py",
            "unit/analysis/findings/test_chat.py",
            "unit/analysis/findings/test_learning_ratio.py",
            "unit/analysis/findings/test_replication.py",
            "unit/analysis/findings/test_truncated_answers.py",
            "unit/analysis/test_context.py",
        ],
        "not sections_charts and not single_point_is_first and not block_sizes_are_joined "
        "and not report and not every_point_has_one_row and not mask_table "
        "and not full_attention_alone and not imports_have_the_section and not is_claimed_without "
        "and not summary",
    ),
    "adaptation": Group(
        ["analysis/findings/adaptation", "analysis/findings/perplexity", "analysis/findings/provenance"],
        [
            "unit/analysis/findings/test_adaptation.py",
            "unit/analysis/findings/test_provenance.py",
            "unit/analysis/findings/test_perplexity.py",
        ],
        "not run_stores and not terminal_has and not figures_hold and not page_has",
    ),
    "findings": Group(
        [
            "analysis/finding",
            "analysis/all_findings",
            "analysis/settings",
            "analysis/findings/studies",
            "analysis/summary",
            "analysis/words",
            "analysis/predictions",
        ],
        [
            "unit/analysis/test_finding.py",
            "unit/analysis/test_all_findings.py",
            "unit/analysis/test_summary.py",
            "unit/analysis/test_settings.py",
            "unit/analysis/findings/test_studies.py",
            "unit/analysis/test_words.py",
            "unit/analysis/test_predictions.py",
        ],
        "not another_package and not same_folder_gives and not of_several_settings",
    ),
}


def prepare(name: str) -> Path:
    """A copy of the project in which mutmut works on one group."""
    folder, group = WORK / name, GROUPS[name]
    folder.mkdir(parents=True, exist_ok=True)
    for item in COPIED:
        source, target = ROOT / item, folder / item
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)  # files keep their time: mutmut knows what has changed
        else:
            shutil.copy2(source, target)
    # which tests reach a function: one that was extended would not be asked about what is new to it
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    tests = [f"tests/{path}" for path in group.tests]
    which = ["-k", group.which] if group.which else []
    settings = {
        "source_paths": ["icl_bench"],
        "only_mutate": [f"icl_bench/{module}.py" for module in group.modules],
        "also_copy": ["tasks"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not slow", *which],
        "pytest_add_cli_args_test_selection": tests,
        "use_git_change_detection": False,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    with (folder / "pyproject.toml").open("a") as stream:
        stream.write("\n".join(["\n[tool.mutmut]", *lines, ""]))
    return folder


def mutants(folder: Path, module: str) -> list[str]:
    """The names of a module's mutants, as mutmut has them."""
    program = (
        "import sys; from pathlib import Path\n"
        "from mutmut.mutation.file_mutation import mutate_file_contents\n"
        "from mutmut.utils.format_utils import get_mutant_name\n"
        "path = Path(sys.argv[1])\n"
        "for name in mutate_file_contents(str(path), path.read_text()).mutant_names:\n"
        "    print(get_mutant_name(path, name))\n"
    )
    command = [sys.executable, "-c", program, f"icl_bench/{module}.py"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.split()


def sample(names: Sequence[str], most: int, seed: int) -> list[str]:
    """So many of the names, in their order; the same for the same seed."""
    if len(names) <= most:
        return list(names)
    chosen = np.random.default_rng(seed).choice(len(names), most, replace=False)
    return [names[i] for i in sorted(chosen)]


def forget_survivors(folder: Path, module: str) -> None:
    """Let mutmut try again what survived: it does not look whether a test has changed."""
    file = folder / "mutants" / f"icl_bench/{module}.py.meta"
    if file.exists():
        known = json.loads(file.read_text())
        for name, code in known["exit_code_by_key"].items():
            known["exit_code_by_key"][name] = code if code in KILLED else None
        file.write_text(json.dumps(known))


def run(folder: Path, names: Sequence[str], seconds: float) -> None:
    """Run mutmut on these mutants; what it decided before it is stopped is kept."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.setdefault("ICL_BENCH_DATA", str(ROOT.parent / "shared" / "data"))
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    program = Path(sys.executable).with_name("mutmut")
    command = [str(program), "run", "--max-children", "1", *names]
    process = subprocess.Popen(command, cwd=folder, env=environment, process_group=0)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def verdicts(folder: Path, module: str, names: Sequence[str]) -> dict[str, str]:
    """Mutant -> killed, survived, or not tried."""
    file = folder / "mutants" / f"icl_bench/{module}.py.meta"
    known = json.loads(file.read_text())["exit_code_by_key"] if file.exists() else {}
    said: dict[int | None, str] = {None: "not tried", **dict.fromkeys(KILLED, "killed")}
    return {name: said.get(known.get(name), "survived") for name in names}


def changes(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """What each mutant changes, as a difference."""
    program = str(Path(sys.executable).with_name("mutmut"))
    for name in names:
        done = subprocess.run([program, "show", name], cwd=folder, capture_output=True, text=True)
        yield f"\n{name}\n{done.stdout.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--minutes", type=float, default=20, help="for each group")
    parser.add_argument("--most", type=int, default=150, help="mutants tried of a module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--show", action="store_true", help="show what survived")
    asked = parser.parse_args()
    table = ["| module | mutants | tried | killed | share |", "| --- | --- | --- | --- | --- |"]
    survivors: list[str] = []
    for name in asked.groups or GROUPS:
        folder = prepare(name)
        for module in GROUPS[name].modules:
            forget_survivors(folder, module)
        every = {module: mutants(folder, module) for module in GROUPS[name].modules}
        chosen = {module: sample(found, asked.most, asked.seed) for module, found in every.items()}
        run(folder, [one for found in chosen.values() for one in found], 60 * asked.minutes)
        for module, found in chosen.items():
            said = verdicts(folder, module, found)
            tried = [one for one in found if said[one] != "not tried"]
            left = [one for one in tried if said[one] == "survived"]
            killed = len(tried) - len(left)
            share = f"{100 * killed / len(tried):.0f}%" if tried else "-"
            counts = f"{len(every[module])} | {len(tried)} | {killed} | {share}"
            table.append(f"| {module}.py | {counts} |")
            survivors += changes(folder, left) if asked.show else left
    print("", *table, "\nsurvived:", *survivors, sep="\n")


if __name__ == "__main__":
    main()
