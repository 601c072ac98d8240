"""Parity with TRL: the same tensors in, the same loss and gradient out. ``python -m
studies.benchmarks.parity``.

`cases` says what is compared, as plain data that both sides read. `ours` computes our side through
the learner, the child process `peers.trl_parity` TRL's, with TRL's own trainers. `exact`
takes the float32 islands out of a float64 model.
"""
