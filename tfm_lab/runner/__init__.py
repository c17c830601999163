"""The strict notebook runner: execute the series through papermill, judge every recorded number, write the report.

Stricter than papermill itself: unknown or unread parameters are refused, a whole notebook has a time limit enforced
from outside, warnings fail, and every number is held against ``notebooks/expected.toml``. ``series`` runs and judges,
``report`` writes the report, ``hygiene`` checks what is committed.
"""
