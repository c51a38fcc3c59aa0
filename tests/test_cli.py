"""The command line as a user sees it: what it prints, where, and how it exits."""

import json
import re
import signal
import sqlite3
import time

import pytest
from commands import TINY, command, commands, environment, start, write

import autoprec
from autoprec.apply import apply_plan
from autoprec.console import _without_password
from autoprec.errors import PlanError, SettingError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint
from autoprec.plan import MODULE_RUNTIMES, SCHEMA, ModulePlan, Plan, UnitPlan
from autoprec.runtimes.available import RUNTIMES
from autoprec.store.schema import VERSION_TABLE
from autoprec.store.store import Store
from autoprec.terminal import make_console

MISTAKES = (
    TINY
    + """
class NaN(Tiny):
    def quality(self, model): return float("nan")
class ATensor(Tiny):
    def quality(self, model): return torch.ones(())
class AString(Tiny):
    def quality(self, model): return "0.9"
class Raises(Tiny):
    def quality(self, model): raise ValueError("no\\ndata")
class Leaves(Tiny):
    def quality(self, model): raise SystemExit(0)
class BadMetrics(Tiny):
    def metrics(self, model): return {"loss": float("nan")}
class NoUnit(Tiny):
    def build_model(self): return nn.Sequential(nn.LayerNorm(64))
class Rejects(Tiny):
    def example_inputs(self): return torch.ones(2, 5)
class NoModel(Tiny):
    def build_model(self): return {"weight": 1}
class Broken(Tiny):
    def build_model(self):
        model = super().build_model()
        nn.init.constant_(model[0].weight, float("nan"))
        return model
def plain(): ...
"""
)


def plan_text(change=lambda data: None):
    """Return the text of a plan for `Tiny`, changed."""
    data = {
        "schema": SCHEMA,
        "architecture": "0" * 32,
        "units": [
            {"name": p, "format": "bf16",
             "modules": [{"path": p, "operation": "linear", "implementation": "aten"}]}
            for p in ("0", "2", "4")
        ],
    }  # fmt: skip
    change(data)
    return json.dumps(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with workloads and plans, good and bad."""
    folder = tmp_path_factory.mktemp("cli")
    write(folder, "mine.py", MISTAKES)
    write(folder, "raises.py", "raise RuntimeError('at\\nimport')")
    write(folder, "leaves.py", "import sys; sys.exit(0)")
    write(folder, "syntax.py", "class Mine(:")
    fits = architecture_fingerprint(load_workload(f"{folder / 'mine.py'}:Tiny").build_model())
    twice = '{"schema": "autoprec.plan/1", "schema": "autoprec.plan/1"}'

    def lacks(data):
        data["architecture"] = fits
        data["units"][0]["modules"][0]["path"] = "7"

    def repeats(data):
        data["units"][0]["modules"][0]["path"] = "2"

    plans = {
        "truncated": plan_text()[:80], "text": "a plan", "empty": "", "twice": twice,
        "version": plan_text(lambda data: data.update(schema="autoprec.plan/9")),
        "module": plan_text(repeats), "nan": plan_text(lambda data: data.update(left={"a": float("nan")})),
        "other": plan_text(), "lacks": plan_text(lacks),
    }  # fmt: skip
    for name, text in plans.items():
        (folder / f"{name}.json").write_text(text)
    with (folder / "large.json").open("wb") as file:
        file.truncate(200 * 2**20)
    (folder / "text.db").write_text(
        "this is no database, but long enough to be read as the header of one" * 9
    )
    with sqlite3.connect(folder / "other.db") as other:
        other.execute("create table notes (text)")
    Store.open(str(folder / "newer.db")).close()
    with sqlite3.connect(folder / "newer.db") as newer:
        newer.execute(f"update {VERSION_TABLE} set version_num = '9999'")
    return folder


CASES = [
    (["tune", "absent"], "unknown workload 'absent'"),
    (["tune", "absent.py:Mine"], "there is no file 'absent.py'"),
    (["tune", "absent_module:Mine"], "No module named 'absent_module'"),
    (["tune", "mine.py:Absent"], "has no 'Absent'; it has Tiny"),
    (["tune", "mine.py"], "Did you mean mine.py:CLASS?"),
    (["tune", "raises.py:Mine"], "raised RuntimeError: at import"),
    (["tune", "leaves.py:Mine"], "called exit(0)"),
    (["tune", "syntax.py:Mine"], "raised SyntaxError"),
    (["tune", "mine.py:plain"], "is a plain function"),
    (["tune", "mine.py:NaN"], "quality(model) returned nan"),
    (["tune", "mine.py:ATensor"], "quality(model) returned an object of type Tensor"),
    (["tune", "mine.py:AString"], "quality(model) returned a string"),
    (["tune", "mine.py:Raises"], "quality(model) raised on the model as it came: ValueError: no data"),
    (["tune", "mine.py:Leaves"], "quality(model) called exit(0)"),
    (["tune", "mine.py:BadMetrics"], "metrics(model)['loss'] returned nan"),
    (["tune", "mine.py:NoUnit"], "the model has no tunable unit; '0': no kernel for LayerNorm"),
    (["tune", "mine.py:Rejects"], "the example inputs raised on the model as it came: RuntimeError"),
    (["tune", "mine.py:NoModel"], "build_model() returned an object of type dict"),
    (["tune", "mine.py:Broken"], "NaN or infinity in the output"),
    (["tune", "mine.py:Tiny", "--budget", "0"], "budget is '0'; give measured runs"),
    (["tune", "mine.py:Tiny", "--budget", "-5"], "budget is '-5'"),
    (["tune", "mine.py:Tiny", "--budget", "abc"], "budget is 'abc'"),
    (["tune", "mine.py:Tiny", "--formats", "int3"], "unknown format 'int3'"),
    (["tune", "mine.py:Tiny", "--formats", ""], "formats is empty"),
    (["tune", "mine.py:Tiny", "--searcher", "best"], "unknown searcher 'best'"),
    (["tune", "mine.py:Tiny", "--objective", "speed"], "unknown objective 'speed'"),
    (["tune", "mine.py:Tiny", "--max-quality-drop", "-1%"], "max_quality_drop is '-1%'"),
    (["tune", "mine.py:Tiny", "--max-memory", "small"], "max_memory is 'small'"),
    (["tune", "mine.py:Tiny", "--seed", "-1"], "seed is -1"),
    (["tune", "mine.py:Tiny", "--group", "("], "groups has the broken regular expression '('"),
    (["tune", "mine.py:Tiny", "--exclude", "nothing"], "exclude 'nothing' matches no module"),
    (["tune", "mine.py:Tiny", "--exclude", ".*"], "the model has no tunable unit"),
    (["tune", "mine.py:Tiny", "--store", "/absent/store.db"], "store '/absent/store.db'"),
    (["tune", "mine.py:Tiny", "--store", "mysql://host/name"], "is of kind 'mysql'"),
    (["tune", "mine.py:Tiny", "--store", "text.db"], "text.db"),
    (["tune", "mine.py:Tiny", "--store", "other.db"], "other.db"),
    (["tune", "mine.py:Tiny", "--store", "newer.db"], "newer.db"),
    (["tune", "mine.py:Tiny", "--out", "mine.py"], "cannot make directory 'mine.py'"),
    (["check", "absent.json", "mine.py:Tiny"], "cannot read plan 'absent.json'"),
    (["check", ".", "mine.py:Tiny"], "Is a directory"),
    (["check", "truncated.json", "mine.py:Tiny"], "truncated.json is not a valid plan"),
    (["check", "text.json", "mine.py:Tiny"], "text.json is not a valid plan"),
    (["check", "empty.json", "mine.py:Tiny"], "empty.json is not a valid plan"),
    (["check", "twice.json", "mine.py:Tiny"], "key 'schema' appears twice"),
    (["check", "version.json", "mine.py:Tiny"], "has schema 'autoprec.plan/9'"),
    (["check", "module.json", "mine.py:Tiny"], "module '2' appears twice"),
    (["check", "nan.json", "mine.py:Tiny"], "NaN is not a finite number"),
    (["check", "large.json", "mine.py:Tiny"], "has 200 MB"),
    (["check", "other.json", "mine.py:Tiny"], "the plan was made for architecture 00000000"),
    (["check", "lacks.json", "mine.py:Tiny"], "the model has no module '7'"),
    (["check", "other.json", "absent"], "unknown workload 'absent'"),
]


@pytest.fixture(scope="module")
def answers(folder):
    return commands(folder, [arguments for arguments, _ in CASES])


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: " ".join(CASES[index][0]))
def test_a_mistake_is_one_line_and_exit_code_2(folder, answers, index):
    code, out, err = answers[index]
    assert CASES[index][1] in err
    assert code == 2
    assert err.startswith("autoprec: ") and err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in out + err
    assert not (folder / "autoprec-out" / "plan.json").exists()


def test_help_and_version_need_no_subcommand(folder):
    help_, tune_help, version = commands(folder, [["--help"], ["tune", "--help"], ["--version"]])
    assert version == (0, f"{autoprec.__version__}\n", "")
    assert help_[0] == tune_help[0] == 0
    assert all(name in help_[1] for name in ("tune", "check", "doctor", "workloads"))
    for option in ("objective", "max-quality-drop", "max-memory", "budget", "searcher", "formats", "seed",
                   "store", "out", "resume"):  # fmt: skip
        assert f"--{option}" in tune_help[1]


def test_a_command_that_does_not_exist_is_refused_without_a_traceback(folder):
    for call in ([], ["tone"], ["tune"], ["tune", "x", "--seed", "abc"], ["tune", "x", "--unknown"]):
        ((code, out, err),) = commands(folder, [call])[0:1]
        assert code == 2 and "Traceback" not in out + err and "Usage" in out + err


def test_the_doctor_says_what_runs_and_why_not(folder):
    code, out, err = command(folder, "doctor", COLUMNS="200")
    assert (code, err) == (0, "")
    for name in ("fp32", "int8_dynamic", "fp8_block", "linear", "conv2d", "embedding", "native", "emulated"):
        assert name in out
    assert re.search(r"fp8_e4m3 linear: emulated, \w+", out)
    assert str(folder / "store.db") in out
    assert re.search(
        r"^Family: (.+ \((not )?verified: .+\); multiplies natively|none that is described)", out, re.M
    )


def test_ready_made_workloads_are_listed(folder):
    code, out, _ = command(folder, "workloads")
    assert code == 0 and {"minilm", "mnist-cnn", "smollm2"} <= {line.split()[0] for line in out.splitlines()}


def test_tuning_a_real_model_and_checking_the_plan(tmp_path):
    """The whole path: tune, read the plan, ask the store for it, and check it."""
    code, out, err = command(
        tmp_path, "tune", "mnist-cnn", "--budget", "25s", "--searcher", "random", "--out", "results/deep",
    )  # fmt: skip
    assert (code, err) == (0, "")
    for words in (
        "profiling",
        "searching",
        "measuring winners",
        "no quality limit was given",
        "measured runs",
    ):
        assert words in out
    assert f"Store:  {tmp_path / 'store.db'} (job " in out
    plan = Plan.load(tmp_path / "results" / "deep" / "plan.json")
    assert (tmp_path / "results" / "deep" / "report.html").stat().st_size > 1000
    assert [m.path for unit in plan.units for m in unit.modules] == ["0", "3", "6", "10", "12"]
    evidence = plan.evidence
    assert evidence.workload == "mnist-cnn" and evidence.quality.split == "final"
    assert evidence.quality.drop <= 0.01
    assert evidence.speedup.low <= evidence.speedup.value <= evidence.speedup.high

    with Store.open(str(tmp_path / "store.db")) as store:
        (job,) = store.jobs()
        runs = store.job_runs(job.id)
        assert job.state == "finished"
        assert evidence.measured_runs == sum(not run.fresh for run in runs)
        assert any(run.fresh and run.plan_key == plan.key for run in runs)
        assert store.best_plan(architecture=plan.architecture, objective="latency") is not None
    # The command ran with one thread, and figures hold for a number of threads.
    found = autoprec.best_plan("mnist-cnn", anywhere=True, store=str(tmp_path / "store.db"))
    assert found.architecture == plan.architecture

    code, out, err = command(tmp_path, "check", "results/deep/plan.json", "mnist-cnn")
    assert err == "" and "claimed" in out
    # A machine that others use can be slower by now; that is an answer too, and never a crash.
    assert (code, "The claim holds here." in out) in {(0, True), (1, False)}


def test_a_budget_in_time_ends_the_job_with_a_plan(tmp_path):
    write(tmp_path, "mine.py", TINY)
    code, _, err = command(
        tmp_path, "tune", "mine.py:Tiny", "--budget", "4s", "--searcher", "hillclimb",
        "--objective", "memory", "--max-quality-drop", "5%", "--out", ".",
    )  # fmt: skip
    assert (code, err) == (0, "")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.evidence.objective == "memory"
    assert plan.evidence.plan_bytes <= plan.evidence.baseline_bytes
    assert plan.evidence.quality.metric.startswith("fidelity")


def test_no_plan_within_the_limits_is_exit_code_1(tmp_path):
    write(tmp_path, "mine.py", TINY)
    code, out, err = command(
        tmp_path, "tune", "mine.py:Tiny", "--budget", "10s", "--searcher", "random", "--max-memory", "100B",
        "--formats", "fp32,bf16", "--out", ".",
    )  # fmt: skip
    assert (code, err) == (1, "")
    assert "no measured plan meets the goal" in out


def test_a_claim_that_does_not_hold_is_exit_code_1(tmp_path):
    write(tmp_path, "mine.py", TINY)
    loaded = load_workload(f"{tmp_path / 'mine.py'}:Tiny")
    modules = [ModulePlan(path=p, operation="linear", implementation="aten") for p in ("0", "2", "4")]
    units = tuple(UnitPlan(name=module.path, format="bf16", modules=(module,)) for module in modules)
    plan = Plan(architecture=architecture_fingerprint(loaded.build_model()), units=units)
    plan.save(tmp_path / "bare.json")
    code, out, err = command(tmp_path, "check", "bare.json", "mine.py:Tiny")
    assert (code, err) == (0, "") and "no claim to hold it to" in out


def test_a_plan_that_is_emulated_here_is_judged_and_not_timed(tmp_path):
    write(tmp_path, "mine.py", TINY)
    loaded = load_workload(f"{tmp_path / 'mine.py'}:Tiny")
    modules = [ModulePlan(path=p, operation="linear", implementation="triton") for p in ("0", "2", "4")]
    units = tuple(UnitPlan(name=module.path, format="fp8_e4m3", modules=(module,)) for module in modules)
    model = loaded.build_model()
    plan = Plan(architecture=architecture_fingerprint(model), units=units)
    plan.save(tmp_path / "fp8.json")
    code, out, err = command(tmp_path, "check", "fp8.json", "mine.py:Tiny")
    assert (code, err) == (0, "")
    assert "fp8_e4m3: no kernel here, so that the speed was not measured" in " ".join(out.split())
    assert "emulated" in out
    with pytest.warns(UserWarning, match="only the rounding is reproduced"):
        apply_plan(model, plan)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_says_how_to_go_on(tmp_path, number):
    write(tmp_path, "mine.py", TINY + """
    def quality(self, model):
        import time
        time.sleep(0.2)
        return 1.0
""")  # fmt: skip
    process = start(
        tmp_path, "tune", "mine.py:Tiny", "--budget", "500", "--objective", "memory", "--out", "a b",
        "--searcher", "random",
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None and runs_in(tmp_path) < 3:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (130, "")
    assert "Stopped. Every finished run is kept. To go on: autoprec tune mine.py:Tiny " in out
    assert "--out 'a b' --searcher random --resume" in out
    with Store.open(str(tmp_path / "store.db")) as store:
        (job,) = store.jobs()
        assert job.state == "interrupted" and len(store.job_runs(job.id)) >= 3 and job.elapsed_seconds > 0


def test_how_to_go_on_shows_no_password():
    hidden = [_without_password(argument) for argument in (
        "postgresql://me:s3cret@host/db", "--store=postgresql+psycopg://me:s3:@cret@host:5432/db?x=1",
        "postgresql://host/db", "path/file.py:name", "a@b:c",
    )]  # fmt: skip
    assert hidden == [
        "postgresql://me:***@host/db", "--store=postgresql+psycopg://me:***@host:5432/db?x=1",
        "postgresql://host/db", "path/file.py:name", "a@b:c",
    ]  # fmt: skip


def test_what_is_printed_is_printed_as_it_is(capsys):
    make_console().print("--group '[a-z]+' of [/usr/lib/x.so] :smile:", soft_wrap=True)
    assert capsys.readouterr().out == "--group '[a-z]+' of [/usr/lib/x.so] :smile:\n"


def runs_in(folder):
    """Return how many runs the store of a folder holds, read as another process would."""
    if not (folder / "store.db").exists():
        return 0
    try:
        with sqlite3.connect(f"file:{folder / 'store.db'}?mode=ro", uri=True) as connection:
            return connection.execute("select count(*) from runs").fetchone()[0]
    except sqlite3.OperationalError:  # it is just being made
        return 0


def test_commands_run_with_a_store_of_their_own(tmp_path):
    assert environment(tmp_path)["AUTOPREC_STORE"] == str(tmp_path / "store.db")


def test_all_runtimes_are_compared_and_the_winners_model_is_written(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    write(tmp_path, "mine.py", TINY)
    tune = ("tune", "mine.py:Tiny", "--budget", "9", "--searcher", "random", "--out", "o")
    code, out, err = command(tmp_path, *tune, "--runtime", "all", OMP_NUM_THREADS="2")
    assert (code, err) == (0, "")
    plan = Plan.load(tmp_path / "o" / "plan.json")
    assert f"run by {plan.runtime}" in out
    for name in RUNTIMES:
        assert re.search(rf"│ {name} +│ \d+\.\d\dx", out), out
    assert (tmp_path / "o" / "model.onnx").exists() == (plan.runtime not in MODULE_RUNTIMES)
    assert plan.evidence.device.runtime == plan.runtime

    code, out, err = command(tmp_path, *tune, "--runtime", "onnxruntime", OMP_NUM_THREADS="2")
    assert (code, err) == (0, "")
    plan = Plan.load(tmp_path / "o" / "plan.json")
    if plan.runtime == "onnxruntime":  # or nothing there is faster than the model as it came
        assert plan.evidence.device.versions["onnxruntime"]
        code, out, err = command(tmp_path, "check", "o/plan.json", "mine.py:Tiny")
        assert err == "" and "claimed" in out
        with pytest.raises(PlanError, match="the plan is for onnxruntime, which runs the model file"):
            autoprec.apply_plan(load_workload(f"{tmp_path / 'mine.py'}:Tiny").build_model(), plan)
    with Store.open(str(tmp_path / "store.db")) as store:
        jobs = store.jobs()
        assert {job.state for job in jobs} == {"finished"} and len(jobs) == 2
        assert any(run.cached for run in store.job_runs(jobs[0].id))  # what the first job measured


def test_compiled_plans_are_found_checked_and_applied(tmp_path):
    write(tmp_path, "mine.py", TINY)
    tune = (
        "tune",
        "mine.py:Tiny",
        "--budget",
        "3",
        "--searcher",
        "random",
        "--formats",
        "fp32",
        "--out",
        "o",
    )
    code, out, err = command(tmp_path, *tune, "--runtime", "compile")
    if "finds no C++ compiler" in err:
        pytest.skip(err)
    assert (code, err) == (0, "")
    plan = Plan.load(tmp_path / "o" / "plan.json")
    if plan.runtime == "compile":  # or it is no faster there than the model as it came
        assert "torch.compile(model" in (tmp_path / "o" / "report.html").read_text()
        code, out, err = command(tmp_path, "check", "o/plan.json", "mine.py:Tiny")
        assert err == "" and "claimed" in out
        model = load_workload(f"{tmp_path / 'mine.py'}:Tiny").build_model()
        assert autoprec.apply_plan(model, plan).modules


def test_a_runtime_that_cannot_run_the_model_is_said_in_one_line(tmp_path):
    pytest.importorskip("onnxruntime")
    write(
        tmp_path,
        "mine.py",
        TINY
        + """
class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else x
class Mine(Tiny):
    def build_model(self): return Branching()
""",
    )
    code, _, err = command(tmp_path, "tune", "mine.py:Mine", "--runtime", "onnxruntime")
    assert code == 2 and err.count("\n") == 1
    assert "runtime onnxruntime cannot run this workload: the model does not export to ONNX" in err
    code, _, err = command(tmp_path, "tune", "mine.py:Mine", "--runtime", "tvm")
    assert code == 2
    assert "unknown runtime 'tvm'; use one of eager, compile, onnxruntime, openvino, or all" in err


@pytest.mark.parametrize("limit", ["1%", "junk", -1, float("nan")])
def test_best_plan_takes_an_absolute_limit_only(limit):
    with pytest.raises(SettingError, match="best_plan takes an absolute number, 0 or more"):
        autoprec.best_plan("mnist-cnn", max_quality_drop=limit, store="sqlite://")
