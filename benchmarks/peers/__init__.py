"""The other side of each comparison. These modules run under `benchmarks/.peers` and import no Quintain."""
