"""A study of many cells on Ray whose engines only wait: what sharing out and storing cost, and
whether anything is lost or counted twice when engines and machines die.

    python benchmarks/cluster.py [--draws 1000] [--engines 4] [--wait 0.02] [--kills 8]

The study has ten cells a draw. It runs once undisturbed, on a Ray of this machine, and once on a
cluster of two (``ray.cluster_utils``), one of which is taken away and another added, while engines
are killed at random moments. Both are compared prediction by prediction.

Overhead is what a cell adds to the whole run's time beyond waiting, from where all engines have
done their first group: their start is not counted. Beside it stand the engines' own seconds a cell
that are not waiting; where there are more engines than cores, they wait for each other in them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waiting_engine

CELLS_A_DRAW = 10

STUDY = """\
tasks: [stdlib_six]
models: [{model}]
settings:
  - {{name: waiting, k: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], draws: {draws}, test_size: 5,
     backend: waiting}}
"""


def laid_out(folder: Path, model: str, draws: int) -> Any:
    """The study; nothing is computed."""
    from icl_bench.studies.file import load_study
    from icl_bench.studies.rules import PointFilter
    from icl_bench.studies.study import Study

    file = folder / "waiting.yaml"
    file.write_text(STUDY.format(model=model, draws=draws), encoding="utf-8")
    read = load_study(file)
    return Study.prepare(read, PointFilter(read.exclude))


def carried_out(
    study: Any,
    results: Path,
    engines: int,
    say: Callable[[str], None],
    progress: Callable[[int], None] = lambda _: None,
    may_fail: int = 0,
) -> tuple[float, float, int]:
    """Run it on the Ray that is there, or on one of this machine; so many cells may fail.

    Returns the seconds that it took; those from where all engines had done a group; and the groups
    that were done in these.
    """
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.on_ray import connected
    from icl_bench.studies.parts import Listener, StudyProgress

    begun: list[tuple[float, int]] = []

    class Notes(Listener):
        def note(self, text: str) -> None:
            say(text)

        def cluster_progress(self, state: StudyProgress) -> None:
            progress(state.units_done)
            if not begun and state.units_done >= engines:
                begun.append((time.perf_counter(), state.units - state.units_done))

    with connected(ClusterSpec("ray", engines)) as machines:
        start = time.perf_counter()
        outcome = study.run(results, Notes(), machines)
        end = time.perf_counter()
    failed = list(outcome.failed.values())
    assert len(failed) <= may_fail, f"{len(failed)} cells failed: {failed[0]}"
    since, groups = begun[0] if begun else (start, len(study.parts[0].units(0)))
    return end - start, end - since, groups


def predictions(results: Path) -> Any:
    """What was said, by cell and test row; each must be there once."""
    import icl_bench

    rows = icl_bench.read(results).predictions
    assert not rows.duplicated(["cell", "test_id"]).any(), "a prediction is there twice"
    named = rows.set_index(["cell", "test_id"])[["prediction", "gold", "prompt_hash"]]
    return named.sort_index()


def engines_here() -> list[Any]:
    """The processes of this study's engines, and not of another Ray's on this machine."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        with contextlib.suppress(psutil.Error):
            own = process.environ().get("PYTHONPATH") == os.environ["PYTHONPATH"]
            if own and words[0].startswith("ray::Engine"):
                found.append(process)
    return found


class Disturbance:
    """Kills engines at random points of the study, takes a machine away half-way and adds another.

    A group whose engine dies twice without progress is given up, which is another test's business:
    so between two kills each engine has time for a group. On a machine that is busy with other
    work it may not suffice, and one group may be given up: the next run takes it up.
    """

    def __init__(self, cluster: Any, node: Any, kills: int, groups: int, engines: int, seed: int) -> None:
        self._cluster, self._node, self._engines = cluster, node, engines
        self._rng = random.Random(seed)
        self._due = sorted(self._rng.uniform(0.05, 0.7) * groups for _ in range(kills))
        self._half, self._free = groups / 2, 0
        self.killed, self.changed = 0, False

    def at(self, groups_done: int) -> None:
        """So many groups are done: do what is due."""
        import psutil

        if groups_done > self._half and not self.changed:
            self._cluster.remove_node(self._node, allow_graceful=False)
            self._cluster.add_node(num_cpus=2)
            self.changed, self._free = True, groups_done + self._engines
        due = self._due and max(self._due[0], self._free) <= groups_done
        if due and (alive := engines_here()):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._rng.choice(alive).kill()
                self._due.pop(0)
                self.killed, self._free = self.killed + 1, groups_done + self._engines


def disturbed(
    study: Any, results: Path, engines: int, kills: int, seed: int, say: Callable[[str], None]
) -> Disturbance:
    """The same on a cluster of two machines, with engines killed and a machine changed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    node = cluster.add_node(num_cpus=2)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        groups = len(study.parts[0].units(0))
        disturbance = Disturbance(cluster, node, kills, groups, engines, seed)
        carried_out(study, results, engines, say, disturbance.at, may_fail=CELLS_A_DRAW)
        carried_out(study, results, engines, say)
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.shutdown()  # type: ignore[no-untyped-call]
    return disturbance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--wait", type=float, default=0.02, help="seconds a cell")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ[waiting_engine.SECONDS] = str(given.wait)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        waiting_engine.installed(folder / "site")
        start = time.perf_counter()
        study = laid_out(folder, given.model, given.draws)
        layout = time.perf_counter() - start
        cells = given.draws * CELLS_A_DRAW
        seconds, steady, groups = carried_out(study, folder / "quiet", given.engines, print)
        each = steady / (groups * CELLS_A_DRAW)
        whole = predictions(folder / "quiet")
        assert len(whole) == 5 * cells, f"{len(whole)} of {5 * cells} predictions"
        said = {
            "cells": cells,
            "layout_seconds": round(layout, 1),
            "seconds": round(seconds, 1),
            "overhead_ms_a_cell": round(1000 * (each - given.wait / given.engines), 2),
            "engine_ms_a_cell": round(1000 * (each * given.engines - given.wait), 2),
        }
        if given.kills:
            found = disturbed(study, folder / "disturbed", given.engines, given.kills, given.seed, print)
            assert found.killed == given.kills, f"{found.killed} of {given.kills} were killed"
            assert found.changed, "the machines were not changed"
            assert predictions(folder / "disturbed").equals(whole), "the predictions differ"
            said |= {"killed": found.killed, "machine_changed": True, "equal": True}
        print(json.dumps(said))


if __name__ == "__main__":
    main()
