"""The other side of each comparison. These modules run under `studies/benchmarks/.peers` and
import no Quintain.
"""
