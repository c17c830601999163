"""Exact answers by enumeration: what a drafting method and an acceptance rule really emit, without sampling error.

Every random decision of drafting and acceptance goes through one ``Draws`` argument. Replaying a decode over all
outcomes of all its decisions gives the exact law of the emitted tokens, on language models small enough for a table.
"""

from tfm_lab.exact.enumeration import EnumeratingDraws, enumerate_outcomes
from tfm_lab.exact.law import (
    Verdict,
    bias,
    emission_distribution,
    enumerate_drafts,
    enumerate_verdicts,
    exact_emission_distribution,
    expected_length,
    plain_distribution,
    target_rows,
)
from tfm_lab.exact.tables import ROOT, Table, TableSession, one_hot_table, random_table, sparse_table, uniform_table

__all__ = [
    "ROOT",
    "EnumeratingDraws",
    "Table",
    "TableSession",
    "Verdict",
    "bias",
    "emission_distribution",
    "enumerate_drafts",
    "enumerate_outcomes",
    "enumerate_verdicts",
    "exact_emission_distribution",
    "expected_length",
    "one_hot_table",
    "plain_distribution",
    "random_table",
    "sparse_table",
    "target_rows",
    "uniform_table",
]
