"""Verifications per second of `quintain_rewards.math_verify`, and how far a hanging answer overruns its
limit.

The mix is even over whole numbers (right and wrong), fractions, roots and multiples of pi,
polynomials, intervals and sets; every pair is new, so that neither the cache nor the strings of the
reference decide more than they would in training. Rates are medians of the rounds, in wall time;
CPU time of this process and of its workers is beside them.

    python -m studies.benchmarks.math_verify                      a minute
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .common import arguments, spread, table, write

PROCESSES = 2
LIMIT = 1.0
HANGS = (
    r"\sum_{k=1}^{9999} \sum_{n=1}^{9999} \frac{1}{k^2+n^SEED}",
    r"\prod_{k=1}^{9999} (x^k+y+z+kSEED)",
    r"\int_0^1 \frac{x^{SEED}\sin(x^3)}{1+e^{x^2}\cos(x)} dx",
    r"\sum_{k=1}^{9999} \frac{x^k}{k^SEED}",
    r"\binom{99999999SEED}{49999999}",
    r"9^{9^{9}}",
    r"300000000!",
    "(" * 300 + "5" + ")" * 300,
)


def mixed(rng: random.Random) -> Iterator[tuple[str, str]]:
    """References and replies, one of each kind in turn."""
    while True:
        a, b, c = (rng.randint(2, 10**6) for _ in range(3))
        yield str(a), f"\\boxed{{{a}.0}}"
        yield str(a), f"\\boxed{{{a + 1}}}"
        yield f"\\frac{{{a}}}{{{b}}}", f"\\boxed{{\\frac{{{3 * a}}}{{{3 * b}}}}}"
        yield f"{a}\\sqrt{{3}}", f"\\boxed{{\\sqrt{{{3 * a * a}}}}}"
        yield f"\\frac{{{a}\\pi}}{{2}}", f"\\boxed{{{a}\\cdot\\frac{{\\pi}}{{2}}}}"
        yield f"x^2+{a + b}x+{a * b}", f"\\boxed{{(x+{a})(x+{b})}}"
        yield f"[{a},{a + b})", f"\\boxed{{[{a}, \\frac{{{2 * (a + b)}}}{{2}})}}"
        yield (
            f"\\{{{a},{a + b},-{c}\\}}",
            f"\\boxed{{\\{{-{c}, {a + b}, \\frac{{{2 * a}}}{{2}}\\}}}}",
        )


def cpu_of_children(verifier: Any) -> float:
    """CPU seconds of the workers that live."""
    ticks = 0
    for child in list(verifier._pool._all):
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(verifier: Any, n: int, work: Callable[[], object]) -> dict[str, float]:
    """Items per second of wall time, and per second of CPU time of all processes."""
    own_cpu, children_cpu = time.process_time(), cpu_of_children(verifier)
    began = time.perf_counter()
    work()
    wall = time.perf_counter() - began
    cpu = time.process_time() - own_cpu + cpu_of_children(verifier) - children_cpu
    return {"per_second": n / wall, "per_cpu_second": n / max(cpu, 1e-9)}


def rates(verifier: Any, rounds: int, n: int) -> dict[str, list[dict[str, float]]]:
    """Rounds of each case; the cases alternate, so that other work on the machine meets them
    alike.
    """
    pairs = mixed(random.Random(0))
    kinds = ("mixed", "equal strings", "cached")
    rates_by_kind: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with ThreadPoolExecutor(PROCESSES * 2) as threads:
        for _ in range(rounds):
            batch = [next(pairs) for _ in range(n)]

            def run(batch: list[tuple[str, str]] = batch) -> None:
                kinds = list(
                    threads.map(lambda pair: verifier.verify(*pair, timeout=30).kind.value, batch)
                )
                wrong = sum(k != "correct" for k in kinds)
                assert wrong == len(batch) // 8, wrong

            def again(batch: list[tuple[str, str]] = batch) -> None:
                for _ in range(10):
                    for pair in batch:
                        verifier.verify(*pair)

            same = [f"\\frac{{{i}x+{next(pairs)[0]}}}{{y}}" for i in range(n)]

            def equal(same: list[str] = same) -> None:
                for text in same:
                    verifier.verify(text, f"It follows that the answer is \\boxed{{{text}}}.")

            rates_by_kind["mixed"].append(timed(verifier, n, run))
            rates_by_kind["cached"].append(timed(verifier, 10 * n, again))
            rates_by_kind["equal strings"].append(timed(verifier, n, equal))
    return rates_by_kind


def overruns(verifier: Any, rounds: int) -> list[float]:
    """Seconds from a call to its verdict, beyond the limit, for hanging answers; a replaced worker
    costs the next.
    """
    seconds = []
    for seed in range(rounds):
        for text in HANGS:
            began = time.perf_counter()
            verdict = verifier.verify(
                "5", f"\\boxed{{{text.replace('SEED', str(seed + 3))}}}", timeout=LIMIT
            )
            assert verdict.kind.value != "correct"
            seconds.append(time.perf_counter() - began - LIMIT)
    return seconds


def main() -> int:
    from quintain_rewards.math_verify import Verifier

    options = arguments(__doc__).parse_args()
    rounds, n = (1, 80) if options.quick else (options.rounds or 7, 800)
    verifier = Verifier(processes=PROCESSES)
    with ThreadPoolExecutor(PROCESSES * 2) as threads:  # both workers start, and their caches fill
        pairs = mixed(random.Random(1))
        list(
            threads.map(
                lambda pair: verifier.verify(*pair, timeout=60), [next(pairs) for _ in range(200)]
            )
        )
        list(
            threads.map(
                lambda i: verifier.verify(f"x+{i}", f"\\boxed{{{i}+x}}", timeout=60), range(40)
            )
        )
    measured = rates(verifier, rounds, n)
    late = overruns(verifier, 1 if options.quick else 3)
    verifier.close()
    rows = []
    for case, results in measured.items():
        wall, cpu = (
            statistics.median(r[k] for r in results) for k in ("per_second", "per_cpu_second")
        )
        rows.append([case, f"{wall:,.0f}", f"{cpu:,.0f}"])
    print(table(["case", "per second", "per second of CPU"], rows))
    print(
        f"\nbeyond the limit of {LIMIT:g} s: worst {max(late) * 1000:.0f} ms of {len(late)} "
        f"hanging or huge answers"
    )
    summary = {
        case: {k: spread(r[k] for r in results) for k in results[0]}
        for case, results in measured.items()
    }
    conditions = {"processes": PROCESSES, "rounds": rounds, "items": n, "limit_s": LIMIT}
    write(
        "math_verify",
        {"rates": summary, "overrun_s": spread(late)},
        quick=options.quick,
        about=conditions,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
