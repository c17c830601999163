"""Lessons of the notebooks: exercises whose checks are themselves tested, hints, solutions and progress.

    lesson = Lesson("01", solutions=SOLUTIONS)
    lesson.pose("01.residual")                            # task, hints, solution
    residual = lesson.check("01.residual", residual)      # a card; what comes back is right in any case

The modules: ``exercise`` (the records), ``judging`` (an answer under all properties of its exercise), ``cards`` (what a
reader sees), ``lesson`` (one notebook's exercises), ``by_hand`` (solutions that the package has in another form),
``exercises_*`` (the exercises), ``catalogue`` (all of them), ``overlap`` and ``walks`` (two interactive pictures);
for notebook 04 ``weaver_by_hand``, ``node_laws`` and ``read_outs`` (real models asked at every node of a tree),
``path_mask_picture`` and ``siblings`` (an interactive picture); for notebook 05 ``tiny_world``, ``weaver_training``,
``training_evidence``, ``training_by_hand``, ``training_curves`` and ``training_curves_picture`` (an interactive
picture); for notebook 06 ``growing_by_hand``; for notebook 08 ``memory_by_hand``, ``memory_cases``,
``state_bytes`` and ``two_writes`` (an interactive picture).

Notebook 09 asks for Triton kernels: ``interpreting`` (runs them and watches memory), ``puzzles`` (what they are given
and must leave), ``by_hand_kernels`` (solutions), ``wrong_kernels``, ``traffic``, ``solving`` and ``solving_picture``
(the animation), ``closure`` (blocks on the tree), ``microscope`` and ``microscope_picture`` (both cuts of a solve,
entry by entry), ``kernel_times`` (the paper's figures and our own).

Notebook 10 is about seconds: ``speed_by_hand`` (solutions), ``iso_speed`` (length against step cost), ``step_times``
(the paper's figures and our own), ``planner`` and ``planner_picture`` (the best plan for one's own numbers).

Notebook 11 has ``ledger``: the claims of the paper and what stands behind each.
"""

from tfm_lab.lessons.catalogue import EXERCISES
from tfm_lab.lessons.exercise import Exercise, Misconception, Property, todo
from tfm_lab.lessons.judging import Judgement, judge
from tfm_lab.lessons.lesson import Lesson, UnsolvedError

__all__ = [
    "EXERCISES",
    "Exercise",
    "Judgement",
    "Lesson",
    "Misconception",
    "Property",
    "UnsolvedError",
    "judge",
    "todo",
]
