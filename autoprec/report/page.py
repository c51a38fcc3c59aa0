"""Puts the page together and writes it: one file, no request to any host."""

from __future__ import annotations

import base64
import hashlib
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from autoprec.envs.space import FORMAT_NAMES
from autoprec.errors import PlanError
from autoprec.files import write_in_one_step
from autoprec.plan import Plan
from autoprec.report import tables, words
from autoprec.report.palette import format_colour
from autoprec.report.search_figures import pareto_figure, progress_figure
from autoprec.report.unit_figures import cost_map, gains_figure, sensitivity_map
from autoprec.result import TuneResult, runtime_rows


def write_report(result: TuneResult, path: Path) -> Path:
    """Write the report of a tuning job to `path` in one step; return the path.

    Raises:
        PlanError: The file cannot be written.
    """
    # Names may hold lone surrogates (undecodable file names); no text file can.
    content = render(result).encode("utf-8", "replace")
    try:
        write_in_one_step(path, content)
    except OSError as error:
        raise PlanError(
            f"cannot write report {str(path)!r}: {error.strerror or error}; plans and runs are in the store"
        ) from error
    return path


def render(result: TuneResult) -> str:
    """Return the report as HTML.

    Everything that comes from the workload is escaped: by the template in the text, by `_script_data` in the
    figures. Should anything slip through, the page's policy still lets no script run but the two that
    are hashed in it, and no request leave.
    """
    plan = result.best or result.lossless
    answer = words.answer(result)
    figures = _figures(result, plan)
    scripts = [_script(get_plotlyjs()), _script(_asset("report.js"))]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_asset("page.html"))
    return template.render(
        result=result,
        plan=plan,
        evidence=plan.evidence,
        answer=answer,
        memory=result.goal.objective == "memory",
        evidence_table=tables.evidence_table(result),
        composition=[
            (name, amount, format_colour(name)) for name, amount in words.composition(plan, FORMAT_NAMES)
        ],
        colour=format_colour,
        runtime_rows=runtime_rows(result),
        unit_rows=tables.unit_rows(result, plan),
        total_saved=tables.total_saved(result, plan),
        format_rows=tables.format_rows(result),
        failure_rows=tables.failure_rows(result),
        left_rows=tables.left_rows(result),
        phases=tables.phases(result),
        failed=sum(not trial.ok for trial in result.trials),
        heights={name: figure.layout.height for name, figure in figures.items()},
        words=words,
        reference=shlex.quote(result.workload),
        style=_asset("report.css"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=_script_data(figures),
    )


def _figures(result: TuneResult, plan: Plan) -> dict[str, go.Figure]:
    figures = {
        "pareto": pareto_figure(result),
        "sensitivity": sensitivity_map(result, plan),
        "cost": cost_map(result, plan),
        "gains": gains_figure(result, plan),
        "progress": progress_figure(result),
    }
    if not any(trial.ok for trial in result.trials):
        del figures["progress"]
    return figures


def _script_data(figures: dict[str, go.Figure]) -> Markup:
    """Return the figures as JSON that cannot end the script element it stands in."""
    data = "{" + ",".join(f'"{name}":{_json(figure)}' for name, figure in figures.items()) + "}"
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return Markup(data)  # noqa: S704  (the characters that HTML reads are gone)


def _json(figure: go.Figure) -> str:
    text: Any = figure.to_json(engine="json")
    return str(text)


def _script(source: str) -> Markup:
    """Return a script of ours that stands in the page as it is hashed: HTML knows one kind of line end."""
    source = source.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")
    return Markup(source)  # noqa: S704  (Plotly's library and our own file; nothing of the user's)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("autoprec.report").joinpath(name).read_text(encoding="utf-8")
