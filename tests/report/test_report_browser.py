"""The report in a real browser, where there is one: are the figures drawn, without an error?"""

import re
import shutil
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
from made_results import make_result
from pages import Page
from test_report import hostile_result

from autoprec.report import write_report
from autoprec.report.unit_figures import plan_assignment, saved

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Drawn:
    """What the browser made of a page: the document after its scripts ran, and its console."""

    dom: str
    console: list[str]


@pytest.fixture
def draw(tmp_path):
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(
            "NOT TESTED HERE: no chromium on the PATH, so no report was drawn (apt-get install chromium)"
        )

    def run(path, width=1200):
        done = subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}",
                "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
                f"--window-size={width},1000",
                "--virtual-time-budget=20000", "--dump-dom", path.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        return Drawn(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])

    return run


def figures_of(dom):
    """Return the drawn figures' part of a document: without the tables, the data and the scripts."""
    return dom.split('id="figure-pareto"')[1].split('id="figures"')[0]


def count_drawn(dom):
    """Return how many figures Plotly has drawn."""
    return len(re.findall(r'<div id="figure-\w+"[^>]*class="js-plotly-plot"', dom))


@pytest.mark.parametrize(("units", "width"), [(28, 1200), (130, 500)])
def test_every_figure_is_drawn_without_an_error(units, width, draw, tmp_path):
    result = make_result(units, runs=40, searchers=("random", "greedy"))
    drawn = draw(write_report(result, tmp_path / "report.html"), width)
    assert drawn.console == []
    assert count_drawn(drawn.dom) == 5
    assert drawn.dom.count('class="main-svg"') >= 5
    assert drawn.dom.count('class="hm"') == 2, "the maps"
    bars = drawn.dom.split('class="barlayer')[1].split('class="scatterlayer')[0]
    gains = saved(result, plan_assignment(result, result.best or result.lossless))
    assert bars.count('<g class="point') >= np.count_nonzero(gains)
    assert "var(--" not in figures_of(drawn.dom), "a colour that the style sheet lacks"
    assert "Share chart" not in figures_of(drawn.dom), (
        "Plotly's button that sends the figures to its servers is back"
    )


def test_nothing_hostile_runs(draw, tmp_path):
    drawn = draw(write_report(hostile_result(), tmp_path / "report.html"))
    assert drawn.console == [] and count_drawn(drawn.dom) == 5
    page = Page(drawn.dom)
    assert "img" not in page.tags and page.handlers == []
    assert len(page.scripts) == 3
    assert ">var(--ink)</text>" in drawn.dom, "the unit of that name"


def test_an_error_would_be_seen_and_the_policy_holds(draw, encoder, tmp_path):
    page = write_report(encoder, tmp_path / "report.html").read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace('"pareto":{', '"unknown":{', 1), encoding="utf-8")
    assert draw(broken).console
    injected = tmp_path / "injected.html"
    injected.write_text(
        page.replace(
            "</main>", "<script>document.title='owned'</script><img src=https://example.org/x></main>"
        ),
        encoding="utf-8",
    )
    drawn = draw(injected)
    assert "<title>owned" not in drawn.dom
    assert sum("Content Security Policy" in line for line in drawn.console) >= 2
