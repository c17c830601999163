"""A frozen notebook as one HTML page that shows everything without a network: no scripts, formulas as MathML."""

import re
from html import escape

from jinja2 import DictLoader, pass_context
from jinja2.runtime import Context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

TEMPLATE = """
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js_requirejs -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block data_svg scoped -%}
<div class="jp-RenderedSVG jp-OutputArea-output">{{ output.data['image/svg+xml'] }}</div>
{%- endblock -%}
{%- block data_latex scoped -%}
<div class="jp-RenderedLatex jp-OutputArea-output">{{ output.data['text/latex'] | markdown2html }}</div>
{%- endblock -%}
"""


class PageExporter(HTMLExporter):
    """nbconvert's page in JupyterLab's style, without anything that would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__(template_file="page.html.j2", extra_loaders=[DictLoader({"page.html.j2": TEMPLATE})])
        self.embed_images = True
        self.exclude_input_prompt = True
        self.exclude_output_prompt = True

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Markdown as HTML, with formulas as MathML and links between notebooks as links between pages."""
        attachments = context.get("cell", {}).get("attachments", {})
        path = context.get("resources", {}).get("metadata", {}).get("path", "")
        renderer = _Renderer(escape=False, attachments=attachments, embed_images=True, path=path)
        return MarkdownWithMath(renderer=renderer).render(source)


def notebook_page(notebook: NotebookNode, title: str, folder: str) -> str:
    """The notebook as HTML text.

    Args:
        notebook: a frozen notebook.
        title: shown by the browser.
        folder: where the images of Markdown cells lie.
    """
    html, _ = PageExporter().from_notebook_node(notebook, {"metadata": {"name": title, "path": folder}})
    return html


class _Renderer(IPythonRenderer):
    def block_html(self, html: str) -> str:
        """Parsed only where there is an image to embed: parsing would close a fold at its first blank line."""
        return super().block_html(html) if "<img" in html else html + "\n"

    def block_math(self, body: str) -> str:
        return _formula(body, "block")

    def inline_math(self, body: str) -> str:
        return _formula(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return _formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, re.sub(r"^([\w-]+)\.ipynb(#.*)?$", r"\1.html\2", url), title)


def _formula(body: str, display: str) -> str:
    """MathML of a formula; its source where the converter does not know a command, so that nothing vanishes."""
    try:
        return convert(body.strip(), display=display)
    except Exception:  # the converter raises many types, and a formula must not stop a report
        return f"<code>{escape(body)}</code>"
