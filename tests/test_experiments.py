"""The studies run, and what they rest on is right: exact tables, the pieces' own updates, intervals
over seeds.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="studies need quintain[train]")

import torch
from studies.experiments import failure_causes
from studies.experiments.common import Line, Panel, Report, generator, main, table, to_json
from studies.experiments.tables import END, Played, Pupil, World, accepted, joined, learn, play

from quintain.learning.algorithms import DR_GRPO, GRPO, REINFORCE
from quintain_algorithms import OTB

from .docs.commands import parse
from .docs.pages import Page
from .lanes import mostly_slow

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent
STUDIES = sorted(
    p.stem
    for p in (ROOT / "studies" / "experiments").glob("*.py")
    if p.stem not in ("__init__", "common", "tables")
)
LONG = {
    "async_staleness",
    "clip_higher",
    "context_compaction",
    "distillation",
    "failure_causes",
    "failure_runs",
    "judged_rewards",
    "length_bias",
    "maxrl",
    "mismatch",
    "overoptimisation",
    "positives_negatives",
    "sight",
    "small_model",
    "staleness",
    "tree_search",
}
"""Each takes a second or more; the others prove the same of one study each."""
PAGES = ROOT / "docs" / "experiments"
RESULTS = ROOT / "studies" / "results"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """A study silences the warnings of its process, which is here that of other tests."""
    log = logging.getLogger("quintain")
    before = log.level
    yield
    log.setLevel(before)


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", mostly_slow(STUDIES, {*STUDIES} - LONG))
def test_a_study_runs(name: str, tmp_path: Path) -> None:
    """Tiny sizes, two seeds: a figure, and numbers with their seeds and command."""
    module = importlib.import_module(f"studies.experiments.{name}")
    if name == "small_model" and not module.model_folder().is_dir():
        pytest.skip("needs a model: quintain model get smollm2-135m")
    main(module.study, ["--quick", "--out", str(tmp_path)])
    held = json.loads((tmp_path / f"{name}.json").read_text())

    assert f"python -m studies.experiments.{name} --quick --out {tmp_path}" == held["command"]
    assert held["seeds"] == 2
    assert held["panels"]
    assert held["contrasts"]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    ("name", "part"), [("distillation", "search"), ("tree_search", "arithmetic")]
)
def test_a_part_of_a_study_runs_alone(name: str, part: str, tmp_path: Path) -> None:
    """Its files are named after it, and hold nothing of the other parts."""
    module = importlib.import_module(f"studies.experiments.{name}")
    main(
        module.study,
        ["--quick", "--only", part, "--out", str(tmp_path)],
        parts=module.PARTS,
    )

    assert {p.name for p in tmp_path.iterdir()} == {f"{name}-{part}.json", f"{name}-{part}.png"}
    held = json.loads((tmp_path / f"{name}-{part}.json").read_text())
    assert f"--only {part}" in held["command"]
    assert held["panels"]
    assert all(title.startswith(part) for title in held["panels"])
    assert held["contrasts"]
    assert all(what.startswith(part) for what in held["contrasts"])


def test_parts_of_a_study_do_not_stand_twice() -> None:
    """What has files of its own is not in those of the whole, too, which may be older."""
    for name in STUDIES:
        whole = RESULTS / f"{name}.json"
        for part in getattr(importlib.import_module(f"studies.experiments.{name}"), "PARTS", ()):
            if (RESULTS / f"{name}-{part}.json").exists():
                held = json.loads(whole.read_text())
                assert not any(title.startswith(part) for title in held["panels"])
                assert not any(what.startswith(part) for what in held["contrasts"])


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_has_the_results_of_a_full_run(name: str) -> None:
    """Each study that is written up has its figure and numbers from at least five seeds (or what it
    says).
    """
    page = PAGES / f"{name}.md"
    if not page.exists():
        pytest.skip(f"{name} is not written up")
    text = page.read_text()
    module = importlib.import_module(f"studies.experiments.{name}")
    least = getattr(module, "LEAST_SEEDS", 5)
    least_of = getattr(module, "LEAST_SEEDS_OF", {})
    files = {"": least}
    files |= {f"-{part}": least_of.get(part, least) for part in getattr(module, "PARTS", ())}

    for suffix, seeds in files.items():
        results = RESULTS / f"{name}{suffix}.json"
        if suffix and not results.exists():
            continue  # the part is in the files of the whole
        held = json.loads(results.read_text())
        assert held["seeds"] >= seeds
        assert "--quick" not in held["command"]
        assert f"python -m studies.experiments.{name}" in text
        assert f"({name}{suffix}.png)" in text
        assert held["date"] in text
        assert (PAGES / f"{name}{suffix}.png").exists()


# --------------------------------------------------------------------------------------- the tables

CHAIN = World(
    next=torch.tensor([[1, END, 0], [END, END, 1]]), start=torch.tensor([0, 1]), longest=4
)
LOGITS = torch.tensor([[0.3, -0.2, 0.5], [-1.0, 0.4, 0.1]], dtype=torch.float64)


def answers(count: int = 200, seed: int = 0) -> Played:
    played = play(CHAIN, LOGITS, [0, 1, 0, 1], count // 4, generator(seed))
    return played.scored([float(i % 3 == 0) for i in range(count)])


def test_answers_follow_the_table() -> None:
    """States obey the world, log-probs are the table's, first tokens come as often as they
    should.
    """
    played = answers(8000)
    starts = [0, *(played.owner.diff() != 0).nonzero().squeeze(1).add(1).tolist()]
    logp = LOGITS.log_softmax(-1)

    assert torch.equal(played.logp, logp[played.state, played.token])
    assert torch.equal(played.owner, played.owner.sort().values)
    assert int(played.lengths.max()) == 4
    assert int(played.lengths.min()) == 1
    for i in range(len(played.owner) - 1):
        if played.owner[i] == played.owner[i + 1]:
            assert played.state[i + 1] == CHAIN.next[played.state[i], played.token[i]]
    first = played.token[starts][played.prompt == 0]
    share = torch.bincount(first, minlength=3) / len(first)
    assert torch.allclose(share.double(), logp[0].exp(), atol=4 * 0.5 / 4000**0.5)


def test_answers_can_be_chosen_and_joined() -> None:
    played = answers(20)
    some = played.only([3, 17, 4])
    both = joined([played, some])

    assert [played.rewards[i] for i in (3, 17, 4)] == list(some.rewards)
    for new, old in enumerate((3, 17, 4)):
        for name in ("token", "state", "logp"):
            want = getattr(played, name)[played.owner == old]
            assert torch.equal(want, getattr(some, name)[some.owner == new])
            assert torch.equal(want, getattr(both, name)[both.owner == 20 + new])
    assert not set(both.group[:20].tolist()) & set(both.group[20:].tolist())


@pytest.mark.parametrize("name", ["constant", "sequence", "token", "prompt"])
def test_an_update_is_that_of_the_formula(name: str) -> None:
    """One SGD step moves the table by sum_k c_k A_k d log pi_k, written out here."""
    algorithm = DR_GRPO.replace(objective="policy_gradient", aggregation=name)
    played = answers(24)
    logits = LOGITS.clone().requires_grad_()
    learn(algorithm, lambda: logits, torch.optim.SGD([logits], lr=1.0), played, 4)
    want = LOGITS.clone()
    lengths = played.lengths.tolist()
    for i, r in enumerate(played.rewards):
        indices = [j for j in range(24) if played.group[j] == played.group[i]]
        gain = r - sum(played.rewards[j] for j in indices) / len(indices)
        tokens = sum(lengths[j] for j in indices)
        weight = {
            "constant": 1 / (24 * 4),
            "sequence": 1 / (24 * lengths[i]),
            "token": 1 / sum(lengths),
        }
        c = (weight | {"prompt": 1 / (4 * tokens)})[name]
        for state, token in zip(
            played.state[played.owner == i], played.token[played.owner == i], strict=True
        ):
            want[state] -= c * gain * LOGITS[state].softmax(-1)
            want[state, token] += c * gain

    assert torch.allclose(want, logits.detach(), atol=1e-12)


def test_the_expected_update_is_the_gradient() -> None:
    """REINFORCE on all actions in proportion to their chance: the exact gradient of the expected
    reward.
    """
    algorithm = REINFORCE.replace(advantage="raw", aggregation={"use": "constant", "length": 1})
    logits = torch.tensor(
        [[3.0, 1.0]], dtype=torch.float64
    ).log()  # chances 3/4 and 1/4: four answers hold them exactly
    drawn = Played(
        prompt=torch.zeros(4, dtype=torch.long),
        group=torch.zeros(4, dtype=torch.long),
        owner=torch.arange(4),
        state=torch.zeros(4, dtype=torch.long),
        token=torch.tensor([0, 0, 0, 1]),
        logp=logits.log_softmax(-1)[0, [0, 0, 0, 1]],
        rewards=(10.0, 10.0, 10.0, 2.0),
    )
    held = logits.clone().requires_grad_()
    learn(algorithm, lambda: held, torch.optim.SGD([held], lr=1.0), drawn, 1)
    slope = 0.75 * 0.25 * 8

    assert [slope, -slope] == pytest.approx((held.detach() - logits)[0].tolist(), abs=1e-12)


def test_minibatches_meet_a_ratio_that_is_not_one() -> None:
    """With several updates the later ones see theta apart from prox, and a tight clip shows."""
    algorithm = GRPO.replace(
        kl={"where": "none"}, epochs=3, minibatches=2, objective={"low": 0.01}, aggregation="token"
    )
    logits = LOGITS.clone().requires_grad_()
    shares = learn(algorithm, lambda: logits, torch.optim.SGD([logits], lr=2.0), answers(24), 4)

    assert 0 < shares["clip.high"] < 1
    assert shares["correction"] == 1.0


def test_pieces_that_read_statistics_get_them() -> None:
    """The optimal token baseline has values per token, from the table's own probabilities."""
    logits = LOGITS.clone().requires_grad_()
    learn(OTB, lambda: logits, torch.optim.SGD([logits], lr=1.0), answers(24), 4)

    assert not torch.equal(logits.detach(), LOGITS)


def test_group_filter_drops_whole_groups() -> None:
    played = answers(16).scored([1, 0, 1, 0] + [1] * 4 + [0] * 4 + [0, 0, 0, 1])
    kept = accepted(DR_GRPO.replace(group_filter="varied"), played)

    assert kept is not None
    assert list(kept.rewards) == [1, 0, 1, 0, 0, 0, 0, 1]
    assert accepted(DR_GRPO.replace(group_filter="varied"), played.scored([1] * 16)) is None


def test_a_pupil_knows_its_own_chances() -> None:
    """Exact success is what many draws give; pass@k follows from it; what is hidden cannot be
    learnt.
    """
    pupil = Pupil.born(0, prompts=4, features=3, actions=6, right=2)
    played = pupil.scored(
        play(pupil.world, pupil.table().detach(), [0, 1, 2, 3], 4000, generator(1))
    )
    share = torch.tensor(played.rewards, dtype=torch.float64).view(4, -1).mean(1)

    assert torch.allclose(share, pupil.success(held_out=False), atol=4 * 0.5 / 4000**0.5)
    assert int(pupil.right_train.sum()) == 2 * 4
    one = pupil.success(held_out=True)
    assert float((1 - (1 - one) ** 5).mean()) == pytest.approx(pupil.passes(5))
    assert Pupil.born(0, hidden=4).train.shape == Pupil.born(0).train.shape


# -------------------------------------------------------------------------------------- the reports


def test_a_report_says_how_sure_it_is() -> None:
    line = Line(label="a", x=[0, 1], values=[[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    report = Report(
        panels=[Panel(title="t", xlabel="step", lines=[line])], contrasts={"d": [1.0, 2.0, 3.0]}
    )
    held = to_json(report, "command", "2026-01-01", 3, 0.0)

    assert 2.0 == held["panels"]["t, by step"]["a"]["end"]["mean"] == held["contrasts"]["d"]["mean"]
    assert pytest.approx(held["contrasts"]["d"]["low"], abs=1e-4) == -0.48414
    assert any("| a | 1 | 2 | -0.4841 to 4.484 |" in row for row in table(report))


# ---------------------------------------------------------------------------------------- the pages


def test_links_of_the_pages_resolve_and_their_commands_parse() -> None:
    """Pages, figures and headings that are pointed at exist; `quintain` takes the options that are
    shown.
    """
    for path in sorted(PAGES.glob("*.md")):
        page = Page(path=path)
        for link in page.links:
            file, _, ratio_to = link.partition("#")
            target = path.parent / file if file else path
            assert target.exists(), f"{path.name}: {link}"
            assert not ratio_to or ratio_to in Page(path=target).anchors, f"{path.name}: {link}"
        for command in (c for b in page.blocks if b.language == "bash" for c in b.commands):
            parse(command)


def test_every_study_is_in_the_index() -> None:
    """What is written up is linked from the index, and only that."""
    written = {p.name for p in PAGES.glob("*.md")} - {"README.md"}

    assert written == {
        link for link in Page(path=PAGES / "README.md").links if link.endswith(".md")
    }


# -------------------------------------------------------------------------------- failure causes


@pytest.mark.parametrize("treatment", list(failure_causes.TREATMENTS))
@pytest.mark.parametrize("name", ["time limit of both", "grader crashes on long answers"])
def test_an_expected_update_is_that_of_all_batches(name: str, treatment: str) -> None:
    """Every batch of two groups of two, written out: what its places end with, the advantages and
    weights of what is left, times its probability.
    """
    mode = next(m for m in failure_causes.MODES if m.name == name)
    logits = failure_causes.beginners([3])
    probs, scores = failure_causes.score_functions(logits)
    places = failure_causes.outcomes(mode, treatment, probs)[0]
    assert torch.allclose(places.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    gradient = torch.einsum("teo,tesa->tosa", places, scores[0])
    mass = places.sum(1)
    failed = failure_causes.TREATMENTS[treatment]
    total = torch.zeros(failure_causes.STATES, 4, dtype=torch.float64)
    for ends in itertools.product(range(3), repeat=4):
        of_group = [(task, end) for task, end in zip((0, 0, 1, 1), ends, strict=True)]
        spoiled = {t for t, end in of_group if end == failure_causes.FAILED and failed == "spoils"}
        kept = [
            i
            for i, (task, end) in enumerate(of_group)
            if task not in spoiled and (end != failure_causes.FAILED or failed == "masked")
        ]
        values = failure_causes.updates("leave_one_out", [of_group[i] for i in kept])
        for i, value in zip(kept, values, strict=True):
            task, end = of_group[i]
            if end != failure_causes.FAILED:
                rest = [mass[of_group[j]] for j in range(4) if j != i]
                total += value * torch.stack(rest).prod() * gradient[task, end]
    update = failure_causes.expected_update(mode, treatment, logits, "leave_one_out", 2)[0]

    assert torch.allclose(update, total, atol=1e-12)


def test_the_true_gradient_is_that_of_what_the_author_means() -> None:
    """Against autograd; and without failures every treatment follows it, whatever the baseline."""
    logits = failure_causes.beginners([0, 1]).requires_grad_()
    for mode in (None, *failure_causes.MODES):
        probs, _ = failure_causes.score_functions(logits)
        meant = (probs * failure_causes.means(mode)).sum() / 2
        (expected,) = torch.autograd.grad(meant, logits)
        actual = failure_causes.true_gradient(mode, logits.detach())
        assert torch.allclose(actual, expected, atol=1e-12)
    for baseline, size, treatment in itertools.product(
        failure_causes.BASELINES, (2, 4), failure_causes.TREATMENTS
    ):
        update = failure_causes.expected_update(None, treatment, logits.detach(), baseline, size)
        scale = failure_causes.factor(baseline, size)
        assert torch.allclose(
            update, scale * failure_causes.true_gradient(None, logits.detach()), atol=1e-7
        )


def test_forty_failures_are_told_apart_and_a_score_for_the_policys_is_exact() -> None:
    """Score 0 is the exact gradient of what the policy causes; what the product scores is so."""
    modes, logits = failure_causes.MODES, failure_causes.beginners([0, 1])

    assert len({m.name for m in modes}) == len(modes) == 40
    for mode in modes:
        chances = failure_causes.Chances.of(mode)
        assert 0 <= float(chances.failed.min()) <= float(chances.failed.max()) <= 1
        if mode.cause == "policy":
            exact = failure_causes.bias(mode, "score 0", logits, "leave_one_out", 4)
            assert float(exact.relative.max()) < 1e-6
            left_out = failure_causes.bias(mode, "drop the rollout", logits, "leave_one_out", 4)
            assert float(left_out.relative.min()) > 1e-3
