"""The README's own workload is tuned and its plan applied, as a newcomer would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_own_workload_has_under_twenty_lines_and_tunes(tmp_path: Path) -> None:
    code = re.search(r"```python\n# my_workload\.py\n(.*?)```", README, re.DOTALL)
    assert code is not None
    lines = [line for line in code[1].splitlines() if line.strip()]
    assert len(lines) < 20
    (tmp_path / "my_workload.py").write_text(code[1], encoding="utf-8")
    use = """
import autoprec
from my_workload import Mine

result = autoprec.tune("my_workload.py:Mine", max_quality_drop="1%", budget=6, searcher="ilp",
                       formats="fp32,bf16,int8_dynamic", store="store.db", out="autoprec-out")
model = Mine().build_model()
applied = autoprec.apply_plan(model, autoprec.Plan.load("autoprec-out/plan.json"))
model(Mine().example_inputs())
chosen = {
    entry.path: (unit.format, entry.implementation)
    for unit in result.best.units
    for entry in unit.modules
}
assert applied.modules == chosen, (applied.modules, chosen)
assert autoprec.best_plan("my_workload.py:Mine", store="store.db") is not None
"""
    done = subprocess.run(
        [sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "autoprec-out" / "report.html").is_file()


def test_every_link_in_the_readme_leads_somewhere() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []
