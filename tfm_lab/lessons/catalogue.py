"""All exercises by name, in the order of the notebooks."""

from collections.abc import Mapping
from types import MappingProxyType

from tfm_lab.lessons.exercise import Exercise
from tfm_lab.lessons.exercises_01 import EXERCISES_01
from tfm_lab.lessons.exercises_02 import EXERCISES_02
from tfm_lab.lessons.exercises_03 import EXERCISES_03
from tfm_lab.lessons.exercises_04 import EXERCISES_04
from tfm_lab.lessons.exercises_05 import EXERCISES_05
from tfm_lab.lessons.exercises_06 import EXERCISES_06
from tfm_lab.lessons.exercises_07 import EXERCISES_07
from tfm_lab.lessons.exercises_08 import EXERCISES_08
from tfm_lab.lessons.exercises_09 import EXERCISES_09
from tfm_lab.lessons.exercises_10 import EXERCISES_10
from tfm_lab.lessons.exercises_11 import EXERCISES_11

ALL = (
    *EXERCISES_01,
    *EXERCISES_02,
    *EXERCISES_03,
    *EXERCISES_04,
    *EXERCISES_05,
    *EXERCISES_06,
    *EXERCISES_07,
    *EXERCISES_08,
    *EXERCISES_09,
    *EXERCISES_10,
    *EXERCISES_11,
)
EXERCISES: Mapping[str, Exercise] = MappingProxyType({item.name: item for item in ALL})
