"""What an executed notebook shows: its recorded metrics and what it wrote to standard error."""

from collections.abc import Iterator

from nbformat import NotebookNode

from tfm_lab.recording import METRIC_MIME, Metric


def cell_outputs(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Every output with the number (from 1) of its cell."""
    for number, cell in enumerate(notebook.cells, start=1):
        for output in cell.get("outputs", []):
            yield number, output


def recorded_metrics(notebook: NotebookNode) -> dict[str, Metric]:
    """Recorded metrics by name, in order.

    Raises:
        ValueError: if a name was recorded twice.
    """
    metrics: dict[str, Metric] = {}
    for _, output in cell_outputs(notebook):
        fields = output.get("data", {}).get(METRIC_MIME)
        if fields is None:
            continue
        metric = Metric(**fields)
        if metric.name in metrics:
            raise ValueError(f"metric {metric.name} was recorded twice: give each number its own name")
        metrics[metric.name] = metric
    return metrics


def stderr_problems(notebook: NotebookNode) -> list[str]:
    """One sentence for each cell that wrote to standard error, a warning for example."""
    return [
        f"cell {number} wrote to standard error: {' '.join(output.text.split())[:300]}"
        for number, output in cell_outputs(notebook)
        if output.output_type == "stream" and output.name == "stderr"
    ]
