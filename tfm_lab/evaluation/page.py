"""An evaluation as one HTML page that needs no network: plotly.js is embedded once, if there are figures."""

from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tfm_lab.evaluation.tables import Table

STYLE = """
:root { color-scheme: light; }
body { background: #fff; color: #1f2328; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #6b7280; } td { border-bottom: 1px solid rgba(107, 114, 128, 0.3); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: 0.85rem; }
dt { color: #6b7280; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
"""


def html_page(
    title: str,
    notes: Sequence[str],
    facts: Mapping[str, object],
    figures: Sequence[go.Figure],
    tables: Sequence[Table],
) -> str:
    """The whole page: notes, figures, tables, and at the end where the numbers come from."""
    drawn = [
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{number}",
            config={"displaylogo": False, "responsive": True},
        )
        for number, figure in enumerate(figures, start=1)
    ]
    script = f"\n<script>{get_plotlyjs()}</script>" if figures else ""
    origin = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>\n" for name, value in facts.items())
    parts = [
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>',
        f"<style>{STYLE}</style>{script}\n</head>\n<body>\n<h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        *drawn,
        *(table.html() for table in tables),
        f"<h2>Where these numbers come from</h2>\n<dl>\n{origin}</dl>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)
