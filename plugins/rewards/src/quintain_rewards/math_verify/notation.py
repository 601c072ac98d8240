# ruff: noqa: RUF001
"""Tables of notation: characters outside ASCII, and LaTeX commands that have another name."""

from __future__ import annotations

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢₖₓ", "0123456789+-()nikx", strict=True))
ROOTS = {"√": "", "∛": "3", "∜": "4"}

# What each line begins with replaces the characters after it.
_SYMBOLS = r"""
-             −–—‐‑﹣
*             ∗
/             ÷⁄∕
:             ∶
|             ∣
'             ′’‘
"             “”
,             ，、
;             ；
.             。
i             ⅈ
e             ⅇ
\cdot         ×·⋅
\le           ≤⩽
\ge           ≥⩾
\ne           ≠
\approx       ≈
\equiv        ≡
\pm           ±
\mp           ∓
\infty        ∞
\cup          ∪
\cap          ∩
\setminus     ∖
\in           ∈
\emptyset     ∅⌀
\mathbb{R}    ℝ
\mathbb{Z}    ℤ
\mathbb{N}    ℕ
\mathbb{Q}    ℚ
\mathbb{C}    ℂ
\pi           π𝜋
^\circ        °º
^\circ{}C     ℃
\circ         ∘
\ldots        …⋯
\sum          ∑
\prod         ∏
\langle       ⟨〈
\rangle       ⟩〉
\lfloor       ⌊
\rfloor       ⌋
\lceil        ⌈
\rceil        ⌉
\land         ∧
\lor          ∨
\text{euro}   €
\text{pound}  £
\text{yen}    ¥
\text{cent}   ¢
\mu           µ
"""
_GREEK = """
alpha α beta β gamma γ delta δ epsilon ε zeta ζ eta η theta θ kappa κ lambda λ mu μ nu ν xi ξ rho ρ sigma σ tau τ phi φ
chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Sigma Σ Phi Φ Psi Ψ Omega Ω
"""
# What each line begins with replaces the commands after it.
_COMMANDS = r"""
\frac          \dfrac \tfrac \cfrac
\le            \leq \leqslant
\ge            \geq \geqslant
\ne            \neq
<              \lt
>              \gt
\cdot          \times \ast \bullet
/              \div
:              \colon \ratio
\{             \lbrace
\}             \rbrace
[              \lbrack
]              \rbrack
(              \lparen
)              \rparen
\emptyset      \varnothing \empty
\setminus      \backslash \smallsetminus
\ldots         \dots \cdots \dotsc
i              \imath \mathrm{i}
^\circ         \degree
\approx        \thickapprox
|              \lvert \rvert \vert \mid
\mathbb{R}     \R \reals
\infty         \infin
\binom         \dbinom \tbinom
\land          \wedge
\lor           \vee
\Rightarrow    \implies
\log_{10}      \lg
\text{pound}   \pounds
\text{euro}    \euro
\text{yen}     \yen
\text{cent}    \cent
"""


def _command(text: str) -> str:
    """End a command with a space, so that it ends before a letter that follows it."""
    return text + " " if text[-1].isalpha() and len(text) > 1 else text


_ROWS = [line.split(maxsplit=1) for line in _SYMBOLS.strip().split("\n")]
SYMBOLS = {
    c: _command(replacement) for replacement, characters in _ROWS for c in characters.strip()
}
_WORDS = _GREEK.split()
GREEK = dict(zip(_WORDS[1::2], _WORDS[0::2], strict=True))
COMMANDS = {
    old: line.split()[0] for line in _COMMANDS.strip().split("\n") for old in line.split()[1:]
}
