"""Compare `quintain_rewards.math_verify` with the cases that Math-Verify publishes in the tests of its
source distribution.

    pip download --no-deps --no-binary :all: math-verify==0.9.0; tar xzf math_verify-0.9.0.tar.gz
    python tools/math_verify_cases.py math_verify-0.9.0

Prints each case with another outcome; docs/math-verification.md explains them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def cases(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    """Name of the test, reference, reply and expected outcome of each literal case."""
    for file in sorted((folder / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                if (
                    isinstance(decorator, ast.Call)
                    and ast.unparse(decorator.func) == "pytest.mark.parametrize"
                ):
                    for row in _rows(decorator):
                        expected = row.get("expected", row.get("result"))
                        if {"gold", "pred"} <= row.keys() and expected is not None:
                            yield (
                                node.name,
                                _single(row["gold"]),
                                _single(row["pred"]),
                                bool(expected),
                            )


def _rows(decorator: ast.Call) -> Iterator[Mapping[str, Any]]:
    names = [name.strip() for name in str(ast.literal_eval(decorator.args[0])).split(",")]
    for element in getattr(decorator.args[1], "elts", []):
        try:
            yield dict(zip(names, ast.literal_eval(element), strict=True))
        except (ValueError, TypeError):
            continue  # computed in the test


def _single(text: str) -> str:
    """Commands that some raw strings escape twice, as they were meant."""
    return text if "matrix" in text else text.replace("\\\\", "\\")


def main() -> int:
    from quintain.errors import UsageError
    from quintain_rewards.math_verify import Verifier

    verifier, counts = Verifier(), Counter[str]()
    for name, gold, reply, expected in cases(Path(sys.argv[1])):
        try:
            kind = verifier.verify(gold, reply, timeout=10).kind.value
        except UsageError:
            kind = "unreadable reference"
        same = (kind == "correct") == expected
        counts[
            "the same outcome"
            if same
            else f"{kind}, expected {'equal' if expected else 'different'}"
        ] += 1
        if not same:
            print(f"{name}: {kind}: {gold[-70:]!r} <- {reply[-70:]!r}")
    print(*(f"{count:4} {what}" for what, count in counts.most_common()), sep="\n")
    verifier.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
