"""The kit of `studies/benchmarks/gpu`: its environment, limits, counts and tables; and its
rehearsal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "studies" / "benchmarks" / "gpu"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder `studies` is no distribution."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def environment() -> ModuleType:
    from studies.benchmarks.gpu import environment

    return environment


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """An empty wheel that requires *requires*."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n\n")
        archive.writestr(f"{name}.py", "")


# ---------------------------------------------------------------- environment


def test_a_missing_package_brings_what_it_needs_itself(
    tmp_path: Path, environment: ModuleType
) -> None:
    """Wheels are taken only where they are needed; what neither place has is named, at any depth;
    extras and foreign markers count for nothing.
    """
    make_wheel(tmp_path, "absentone", "2.0", "absenttwo>=1", "click>=8", "none; extra == 'x'")
    make_wheel(tmp_path, "absenttwo", "1.5", "absentthree", "other; sys_platform == 'win32'")
    make_wheel(tmp_path, "click", "99.0")
    packages = environment.Packages(environment.carried(tmp_path))

    assert [*packages.missing(Requirement("absentone>=1"))] == ["absentthree"]
    assert set(packages.taken) == {"absentone", "absenttwo"}
    assert [*packages.missing(Requirement("absenttwo>=2"))] == []  # taken: pip checks no more
    assert [*environment.Packages(packages.wheels).missing(Requirement("absentone>=3"))] == [
        "absentone>=3"
    ]


def test_the_workspace_is_discovered_without_an_install(
    tmp_path: Path, environment: ModuleType
) -> None:
    """What it writes has the entry points and requirements of the real, editable installs."""
    path = environment.prepare(tmp_path / "none", tmp_path / "site")
    made = {dist.name: dist for dist in distributions(path=[str(tmp_path / "site")])}

    assert path[:2] == [tmp_path / "site", ROOT]
    assert all(folder.is_dir() for folder in path)
    assert len(made) == len(environment.members()) > 20
    for name, dist in made.items():
        real = distribution(name)
        assert set(dist.entry_points) == set(real.entry_points), name
        assert dist.version == real.version
        assert Path(f"{dist.read_text('direct_url.json')}") != Path()
    command = [
        sys.executable,
        "-S",
        "-c",
        "import importlib.metadata as m; print(m.version('quintain'))",
    ]
    isolated = {"PYTHONPATH": os.pathsep.join(map(str, path))}
    ended = subprocess.run(command, env=isolated, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == distribution("quintain").version


def test_carried_packages_suit_the_members_that_need_them(environment: ModuleType) -> None:
    """Every pin is of a package that a member, or what it needs, asks for, within its range."""
    lines = (KIT / "carried.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    ranges: dict[str, list[Requirement]] = {name: [] for name in pins}
    waiting = [r for member in environment.members().values() for r in member.requirements]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        name = environment.canonicalize_name(requirement.name)
        if name in ranges and environment.applies(requirement):
            ranges[name].append(requirement)
        if name in pins and name not in seen:
            seen.add(name)
            waiting += [Requirement(text) for text in distribution(name).requires or ()]

    for name, version in pins.items():
        assert ranges[name], f"{name} is needed by nothing"
        # what pydantic wants of its core follows the installed version of pydantic
        theirs = [r for r in ranges[name] if not str(r.specifier).startswith("==")]
        assert all(r.specifier.contains(version) for r in theirs), name


# ---------------------------------------------------------------- limits and records


def part_of(out: Path, seconds: float = 60.0, *, rehearse: bool = False) -> Any:
    from studies.benchmarks.gpu.part import Part

    return Part("0-test", device=CPU, rehearse=rehearse, seconds=seconds, out=out)


def test_each_step_is_on_disk_as_it_ends(tmp_path: Path) -> None:
    part, seen = part_of(tmp_path), {}

    def look() -> dict[str, Any]:
        seen.update(json.loads((tmp_path / "0-test.json").read_text())["steps"])
        return {"figure": 2.0}

    part.measure("first", lambda: {"figure": 1.0})
    part.measure("second", look)

    assert seen["first"]["figure"] == 1.0
    assert seen["second"] == {"running": True}
    assert json.loads((tmp_path / "0-test.json").read_text())["steps"]["second"]["figure"] == 2.0
    assert not part.failed


def test_a_failure_is_recorded_and_the_next_step_runs(tmp_path: Path) -> None:
    """Memory that does not suffice is a result, also where an engine wraps it; an error and a wrong
    number fail the part.
    """
    part = part_of(tmp_path)

    def wrapped() -> dict[str, Any]:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("the engine failed") from error

    part.measure("memory", wrapped)
    assert not part.failed
    part.measure("wrong", lambda: {"ok": False})
    assert part.failed
    part.failed = False
    part.measure("error", lambda: {"never": 1 / 0})
    part.measure("next", lambda: {"ok": True})

    steps = part.record["steps"]
    assert part.failed
    assert steps["memory"]["out_of_memory"] == "CUDA out of memory"
    assert "ZeroDivisionError" in steps["error"]["error"]
    assert steps["next"]["ok"]


def test_a_step_that_would_pass_the_limit_is_not_begun(tmp_path: Path) -> None:
    part = part_of(tmp_path, seconds=5.0)

    assert part.measure("long", lambda: {"figure": 1.0}, expected=60) is None
    assert "60 expected" in part.record["steps"]["long"]["not_reached"]
    assert part.measure("short", lambda: {"figure": 1.0}, expected=1) == {"figure": 1.0}


def test_a_part_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file then says which step was running."""
    from studies.benchmarks.gpu import __main__ as kit

    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\n"
        f'echo \'{{"steps": {{"slow": {{"running": true}}}}}}\' > {tmp_path}/9-slow.json\nwait\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(kit.sys, "executable", str(program))
    monkeypatch.setattr(kit, "GRACE", 0.5)
    monkeypatch.setitem(kit.PARTS, 9, kit.Limits("slow", 1.0))
    args = kit.argparse.Namespace(device="cpu", out=tmp_path, rehearse=True)

    assert kit.run_part(9, args, 1.0) == "cut after 1 s"
    assert "cut" in json.loads((tmp_path / "9-slow.json").read_text())["steps"]["slow"]
    child = int((tmp_path / "child").read_text())
    ends = time.monotonic() + 10
    while gone(child) is False and time.monotonic() < ends:
        time.sleep(0.02)
    assert gone(child)


def gone(process: int) -> bool:
    """Whether it ended; one that nobody has waited for yet has."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_limits_fit_what_the_page_says() -> None:
    """No part takes five minutes. The first ones take a quarter of an hour together, all of them
    little more than half an hour.
    """
    from studies.benchmarks.gpu.__main__ import GRACE, PARTS

    assert [*PARTS] == [1, 8, 3, 2, 4, 6, 5, 7]
    assert all(part.seconds + GRACE < 300 for part in PARTS.values())
    assert all(part.first <= part.seconds for part in PARTS.values())
    first = [part.first for part in PARTS.values() if part.first]
    assert sum(first) + GRACE * len(first) < 15 * 60
    assert sum(part.seconds for part in PARTS.values()) < 36 * 60
    assert all((KIT / f"{part.module}.py").exists() for part in PARTS.values())


@pytest.mark.parametrize(
    ("words", "numbers", "limit"),
    [
        ([], [1, 8, 3, 2, 4, 6], 120),
        (["--full"], [1, 8, 3, 2, 4, 6, 5, 7], 280),
        (["--parts", "5,1"], [5, 1], 280),
        (["--rehearse"], [1, 8, 3, 2, 4, 6, 5, 7], 280),
    ],
)
def test_the_command_line_chooses_parts_and_their_limits(
    monkeypatch: pytest.MonkeyPatch, words: list[str], numbers: list[int], limit: float
) -> None:
    from studies.benchmarks.gpu import __main__ as kit

    monkeypatch.setattr(kit.sys, "argv", ["kit", *words])
    args = kit.arguments()
    assert args.numbers == numbers
    assert args.limits[1] == limit


def test_part_8_runs_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from studies.benchmarks.gpu import overlap
    from studies.benchmarks.gpu.report import instead, report

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    part = part_of(tmp_path, rehearse=True)
    part.record["part"] = "8-overlap"
    overlap.run(part)

    assert not part.failed
    assert not [name for name, step in part.record["steps"].items() if instead(step)]
    assert "| update repeats, deterministic " in report(tmp_path)


def test_an_error_of_part_8_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that fails beside the sampler, and copies that change a number."""
    from studies.benchmarks.gpu import overlap

    from quintain.learning import Learner
    from quintain_learners.lean import HostAdamW

    part = part_of(tmp_path, rehearse=True)
    assert overlap.beside_a_learner(part, "0.1M", 6)["ok"]
    assert overlap.adamw_on_the_host(part, "0.1M")["ok"]

    def refused(self: Any, batch: Any, **options: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Learner, "step", refused)
    assert not overlap.beside_a_learner(part, "0.1M", 6)["ok"]
    seen: list[Any] = []
    before = HostAdamW._send

    def wrong(self: Any, source: Any, target: Any) -> None:
        seen.append(self)
        before(self, source + (self is seen[0]), target)

    monkeypatch.setattr(HostAdamW, "_send", wrong)
    assert not overlap.adamw_on_the_host(part, "0.1M")["ok"]


# ---------------------------------------------------------------- counts


def test_operations_are_those_that_torch_counts() -> None:
    """Of matrix products, for samples without a common prompt, whose tokens but the first all
    train. Attention is half of what torch counts for it, which does not know that it is causal.
    """
    from studies.benchmarks.gpu.work import module_of, random_batch, training_flops
    from torch.utils.flop_counter import FlopCounterMode

    module = module_of("0.1M", CPU, attn_implementation="sdpa")
    tokens = 64
    batch = random_batch(module, groups=2, group_size=1, prompt=1, lengths=[tokens])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    products = counter.get_flop_counts()["Global"]
    attention = sum(n for op, n in products.items() if "attention" in str(op) or "bmm" in str(op))
    plain = sum(products.values()) - attention

    config = module.config
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    assert training_flops(module, batch) == 3 * 2 * (plain + 2 * width * tokens * (tokens + 1))
    assert plain > 0
    assert attention in (0, 4 * width * tokens * tokens)


def test_a_shared_prompt_counts_once() -> None:
    from studies.benchmarks.gpu.work import (
        matrix_parameters,
        module_of,
        random_batch,
        training_flops,
    )

    module = module_of("0.1M", CPU)
    shape = {"prompt": 20, "lengths": [11]}
    apart = random_batch(module, groups=4, group_size=1, **shape)
    shared = random_batch(module, groups=1, group_size=4, **shape)
    config = module.config
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim

    saved = 3 * 20 * 2 * matrix_parameters(module)[0] + 4 * width * 3 * 20 * 21 // 2
    assert training_flops(module, apart) - training_flops(module, shared) == 3 * saved


def test_bytes_of_a_step_are_matrices_and_cache() -> None:
    from studies.benchmarks.gpu.work import module_of, step_bytes

    from quintain.models.load import cache_bytes

    module = module_of("0.1M", CPU, torch.bfloat16)
    vectors = sum(p.numel() for p in module.parameters() if p.ndim == 1)
    weights = sum(p.numel() for p in module.parameters()) - vectors

    assert step_bytes(module, 0, 5) == 2 * weights
    caches = step_bytes(module, 100, 5) - step_bytes(module, 0, 5)
    assert caches == 5 * cache_bytes(module, 100, "bfloat16")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>",
            "flash",
        ),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Params)", "efficient"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128", "cudnn"),
        ("triton_tem_fused_flex_attention_0", "flex"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 11>", "math"),
        ("aten::_scaled_dot_product_attention_math", "math"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", None),
    ],
)
def test_kernels_of_attention_are_told_apart(name: str, kind: str | None) -> None:
    from studies.benchmarks.gpu.kernels import kind_of

    assert kind_of(name) == kind


def test_the_profile_names_the_attention_that_ran() -> None:
    from studies.benchmarks.gpu.kernels import profiled
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x = torch.randn(1, 2, 8, 16)

    def attend(backend: SDPBackend) -> dict[str, Any]:
        with sdpa_kernel(backend):
            return profiled(lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x), CPU)

    flash, math = attend(SDPBackend.FLASH_ATTENTION), attend(SDPBackend.MATH)
    assert [*flash["calls"]] == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert [*flash["attention"]] == ["flash"]
    assert [*math["calls"]] == ["_scaled_dot_product_attention_math"]


# ---------------------------------------------------------------- part 1 can fail


def test_correctness_finds_a_wrong_engine_and_a_wrong_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right ones are within the limits, planted errors are not."""
    from studies.benchmarks.gpu.correctness import engine_error, gradient_error

    from quintain.engine.decoding import LayerForward
    from quintain.learning import Learner

    assert engine_error("0.1M", "float32", CPU, 8)["ok"]
    assert gradient_error("0.1M", CPU, "float32")["ok"]
    head = LayerForward.head

    def wrong_head(self: Any, hidden: Any) -> Any:
        # an engine that is wrong with two rows already would not be chosen
        return head(self, hidden) * (1.002 if len(hidden) > 2 else 1.0)

    monkeypatch.setattr(LayerForward, "head", wrong_head)
    wrong = engine_error("0.1M", "float32", CPU, 8)
    assert not wrong["ok"]
    assert wrong["sampled_from_plain"] > wrong["limit"]
    monkeypatch.undo()
    before = Learner.step

    def scaled(self: Any, batch: Any, **options: Any) -> Any:
        result = before(self, batch, **options)
        if self.module.dtype == torch.float32:
            self.parameters[3].grad.mul_(1.05)
        return result

    monkeypatch.setattr(Learner, "step", scaled)
    assert not gradient_error("0.1M", CPU, "float32")["ok"]


def test_differences_of_runs_are_named_with_their_size() -> None:
    from studies.benchmarks.gpu.loop import differences

    one = [{"loss": 1.0, "same": 3}, {"loss": 2.0, "same": 3, "gone": 1}]
    other = [{"loss": 1.0, "same": 3}, {"loss": 2.5, "same": 3}]

    assert differences(one, one) == {}
    assert differences(one, other) == {"gone": "all", "loss": 0.2}
    assert differences(one, one[:1]) == {"steps": "all"}


# ---------------------------------------------------------------- tables


def test_the_report_has_figures_and_what_is_missing(tmp_path: Path) -> None:
    from studies.benchmarks.gpu.report import report

    part = part_of(tmp_path)
    part.record |= {
        "part": "2-training",
        "card": {"name": "Card X", "now": {"driver_version": "1.2"}},
    }
    part.path = tmp_path / "2-training.json"
    part.record["steps"] = {
        "card": {"flops": 8e14, "copy": 3e12, "read": 2.9e12},
        "0.6B 4096 tokens": {"seconds": 1.5, "tokens_per_second": 20000.0, "mfu": 0.25, "aim": 0.4},
        "1.7B 4096 tokens": {"out_of_memory": "CUDA out of memory"},
        "0.6B 16384 tokens": {"running": True},
        "later": {"not_reached": "3 s left, 40 expected"},
    }
    part.save()
    text = report(tmp_path)

    assert "Card X, driver 1.2" in text
    assert "800.0 TFLOP/s" in text
    row = next(line for line in text.splitlines() if line.startswith("| 0.6B 4096"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "0.6B 4096 tokens",
        "1.5",
        "20,000",
        "25.0 %",
        "40.0 %",
    ]
    assert "- 1.7B 4096 tokens: out of memory: CUDA out of memory" in text
    assert "- 0.6B 16384 tokens: cut while it was running" in text
    assert "- later: not reached: 3 s left, 40 expected" in text
    assert "did not reach its end" in text


@pytest.mark.slow
def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    """And points to the rehearsal."""
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    command = ["sh", str(KIT / "run.sh"), "--parts", "5", "--out", str(tmp_path / "out")]
    environ = {**os.environ, "PYTHON": sys.executable, "SITE": str(tmp_path / "site")}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)

    assert ended.returncode == 1
    assert "no CUDA device" in ended.stderr
    assert "part 5 (memory): status 2" in ended.stdout


@pytest.mark.slow
def test_the_whole_kit_runs_in_miniature(tmp_path: Path) -> None:
    """Every part ends well on the CPU, none of its steps with an error, and each file is small: with
    this Python, or that of an environment as bare as the GPU machine's.
    """
    command = ["sh", str(KIT / "run.sh"), "--rehearse", "--out", str(tmp_path / "out")]
    python = os.environ.get("QUINTAIN_KIT_PYTHON", sys.executable)
    environ = {**os.environ, "PYTHON": python, "SITE": str(tmp_path / "site")}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=3600)

    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    files = sorted((tmp_path / "out").glob("*.json"))
    assert [f.stem[0] for f in files] == ["1", "2", "3", "4", "5", "6", "7", "8"]
    for file in files:
        record = json.loads(file.read_text())
        assert file.stat().st_size < 2**20
        assert record["complete"]
        assert record["rehearsal"]
        assert all("error" not in step for step in record["steps"].values())
    loop = json.loads((tmp_path / "out" / "4-loop.json").read_text())["steps"]
    assert loop["resume float32"]["resumed_equal"]
    assert "a rehearsal: no figures" in (tmp_path / "out" / "report.md").read_text()


def test_versions_that_the_kit_was_rehearsed_with_are_in_range() -> None:
    """The page names them; `pyproject.toml` promises that they work."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    train = [Requirement(text) for text in project["optional-dependencies"]["train"]]
    ranges = {requirement.name: requirement.specifier for requirement in train}

    assert ranges["torch"].contains("2.11.0")
    assert ranges["transformers"].contains("5.17.0")
