"""`quintain launch`: print the job that trains a recipe on several machines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from quintain.cli import Count, set_option
from quintain.errors import UsageError
from quintain.recipe import (
    Recipe,
    RunPlan,
    engine_kind,
    names_cluster,
    placement_of,
    placement_table,
    with_placement,
)

ADDRESS = "QUINTAIN_RENDEZVOUS"
"""Environment variable of the address at which the run waits for its ranks."""
TOKEN = "QUINTAIN_RANKS_TOKEN"
MACHINES_TOKEN = "QUINTAIN_MACHINES_TOKEN"
MAKE_TOKEN = "python -c 'import secrets; print(secrets.token_hex())'"
NAMES = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
"""Names that Kubernetes takes for jobs and hosts."""

EPILOG = """
\b
Examples:
  quintain launch recipe.toml --nodes 2 --gpus 8 --slurm > job.sh        then: sbatch job.sh
  quintain launch recipe.toml --nodes 2 --gpus 8 --torchrun --host node0 > job.sh
  quintain launch recipe.toml --nodes 2 --gpus 8 --kubernetes --image registry/quintain:1 > job.yaml
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run on several machines: one process that runs it, and a rank for each GPU; or, with the
    cluster `machine`, what this divides the GPUs into.

    Attributes:
        recipe: file or name, as in `quintain train`.
        name: of the run and of the job.
        folder: of run folders.
        nodes: number of machines.
        gpus: ranks on each.
        port: at which the run waits for its ranks; the next one is torchrun's.
        changes: of the recipe, ``a.b=value``.
        devices: lines that say what each GPU does under the cluster `machine`; else none.
    """

    recipe: str
    name: str
    folder: str
    nodes: int
    gpus: int
    port: int
    changes: Sequence[str]
    devices: Sequence[str] = ()

    @property
    def ranks(self) -> int:
        """Their number on all machines."""
        return self.nodes * self.gpus

    @property
    def tasks(self) -> int:
        """Processes that the job starts on a machine beside the run."""
        return 1 if self.devices else self.gpus

    @property
    def token(self) -> str:
        """Environment variable of what they have to know."""
        return MACHINES_TOKEN if self.devices else TOKEN

    @property
    def comment(self) -> str:
        """Lines that say what the job starts."""
        if not self.devices:
            return "# srun starts a rank for each GPU, and the ranks wait for the run."
        first = "# srun lets each machine join the run, which starts on its GPUs:"
        return "\n".join([first, *(f"# {line}" for line in self.devices[1:])])

    def join(self) -> str:
        """Return words of bash that let a process of the job join the run."""
        if not self.devices:
            return f'-m quintain_learners.fsdp.join "${ADDRESS}"'
        return f'-m quintain_scale.machine.join "${ADDRESS}" --devices {self.gpus}'

    def train(self) -> str:
        """Return lines of bash that start the run, or continue it if its folder exists."""
        changes = [
            *self.changes,
            "learner.use=fsdp",
            f"learner.args.ranks={self.ranks}",
            f"learner.args.rendezvous=${ADDRESS}",
        ]
        if self.devices:
            changes = [*self.changes, *placed_changes(self.nodes, self.gpus)]
        words = ["quintain", "train", self.recipe, "--name", self.name]
        words += [word for change in changes for word in ("--set", change)]
        folder = f"{self.folder}/{self.name}"
        again = shlex.join(["quintain", "train", "--resume", folder])
        return (
            f"if [ -e {shlex.quote(folder + '/recipe.toml')} ]; then\n"
            f"    {again}\n"
            f"else\n"
            f"    {shlex.join(words)}\n"
            f"fi"
        )


def placed_changes(nodes: int, gpus: int) -> list[str]:
    """Return changes of a recipe with the cluster `machine` that let *nodes* machines join."""
    return [
        f"cluster.args.machines={nodes}",
        f"cluster.args.devices={gpus}",
        f"cluster.args.rendezvous=${ADDRESS}",
    ]


def slurm(job: Job) -> str:
    """Return a script for ``sbatch``."""
    return f"""#!/bin/bash
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node={job.tasks}
#SBATCH --gpus-per-node={job.gpus}
#SBATCH --output={job.name}-%j.txt
# Add what your cluster asks for: --partition, --account, --time, --cpus-per-task, --mem.
# The run is on the first machine.
{job.comment}
set -euo pipefail
{job.token}=$({MAKE_TOKEN})
{ADDRESS}=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p):{job.port}
export {job.token} {ADDRESS}
srun --kill-on-bad-exit=1 python {job.join()} &
ranks=$!
trap 'kill "$ranks" 2>/dev/null || true' EXIT
{job.train()}
wait "$ranks"
"""


def torchrun(job: Job, host: str) -> str:
    """Return a script to run on each machine, with its number; machine 0 is *host*."""
    return f"""#!/bin/bash
# Run this on each of {job.nodes} machines: bash job.sh NUMBER, from 0 on. Machine 0 is {host}.
# All need the same {job.token}: {MAKE_TOKEN}
{"".join(f"# {line}{chr(10)}" for line in job.devices)}set -euo pipefail
node=${{1:?the number of this machine, from 0 to {job.nodes - 1}}}
: "${{{job.token}:?the same on all machines}}"
{_on_each_machine(job, shlex.quote(host))}"""


def _on_each_machine(job: Job, host: str) -> str:
    """Return lines of bash for machine ``$node``; *host* is a word of bash, the address of
    machine 0.
    """
    run = "\n".join(f"    {line}" for line in job.train().splitlines())
    start = (
        f'torchrun --nnodes={job.nodes} --nproc-per-node={job.gpus} --node-rank="$node" \\\n'
        f"    --master-addr={host} --master-port={job.port + 1} \\\n"
        f"    {job.join()} &"
    )
    if job.devices:
        start = f'python {job.join()} --machine "$node" &'
    return f"""export {job.token} {ADDRESS}={host}:{job.port}
{start}
ranks=$!
trap 'kill "$ranks" 2>/dev/null || true' EXIT
if [ "$node" -eq 0 ]; then
{run}
fi
wait "$ranks"
"""


def kubernetes(job: Job, image: str, claim: str) -> str:
    """Return a service, by which machines have names, and an indexed job, for ``kubectl apply``.

    Args:
        image: has bash, Quintain and its plugins.
        claim: a persistent volume claim that all machines can mount, for recipe and run folder.
    """
    script = f"""set -euo pipefail
node=$JOB_COMPLETION_INDEX
{_on_each_machine(job, f"{job.name}-0.{job.name}")}"""
    command = "\n".join(f"              {line}" for line in script.splitlines())
    return f"""# Before: kubectl create secret generic {job.name} --from-literal=token=$({MAKE_TOKEN})
# The volume claim {claim} has the recipe, and gets the run folder.
apiVersion: v1
kind: Service
metadata:
  name: {job.name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: {job.name}
  ports:
    - port: {job.port}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {job.name}
spec:
  completions: {job.nodes}
  parallelism: {job.nodes}
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: {job.name}
      restartPolicy: Never
      containers:
        - name: quintain
          image: "{image}"
          workingDir: /work
          command:
            - bash
            - -c
            - |
{command}
          env:
            - name: {job.token}
              valueFrom:
                secretKeyRef:
                  name: {job.name}
                  key: token
          resources:
            limits:
              nvidia.com/gpu: {job.gpus}
          volumeMounts:
            - name: work
              mountPath: /work
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: work
          persistentVolumeClaim:
            claimName: {claim}
        - name: shared-memory
          emptyDir:
            medium: Memory
"""


@click.command(epilog=EPILOG)
@click.argument("recipe")
@click.option("--slurm", "kind", flag_value="slurm", help="Print a script for sbatch.")
@click.option("--kubernetes", "kind", flag_value="kubernetes", help="Print objects for kubectl.")
@click.option("--torchrun", "kind", flag_value="torchrun", help="Print a script for each machine.")
@click.option("--nodes", type=Count(1), default=1, show_default=True, help="Machines.")
@click.option("--gpus", type=Count(1), default=8, show_default=True, help="GPUs of a machine.")
@click.option("--name", help="Name of run and job.  [default: that of the recipe]")
@click.option("--port", type=Count(1024), default=29400, show_default=True, help="Of the run.")
@click.option("--host", help="With --torchrun: address of the first machine.")
@click.option("--image", help="With --kubernetes: container image that has Quintain.")
@click.option(
    "--claim",
    default="quintain",
    show_default=True,
    help="With --kubernetes: claim of a volume that has the recipe and gets the run.",
)
@set_option
def launch(
    recipe: str,
    kind: str | None,
    nodes: int,
    gpus: int,
    name: str | None,
    port: int,
    host: str | None,
    image: str | None,
    claim: str,
    overrides: Sequence[str],
) -> None:
    """Print the job that trains RECIPE on several machines; nothing is started.

    RECIPE is a TOML file or a recipe such as "code". The job starts one rank for each GPU, and the
    run on the first machine. With the cluster "machine" in the recipe, all GPUs are divided as it
    says, and the job has what each does in a comment.
    """
    if kind is None:
        raise UsageError("say for what the job is: --slurm, --kubernetes or --torchrun")
    path = Path(recipe)
    parsed = Recipe.load(recipe, overrides)
    own = name or parsed.run.name or path.stem
    job = Job(
        recipe=recipe,
        name=_checked_name(own),
        folder=parsed.run.folder,
        nodes=nodes,
        gpus=gpus,
        port=port,
        changes=overrides,
        devices=_devices(recipe, parsed, overrides, nodes, gpus),
    )
    if kind == "slurm":
        text = slurm(job)
    elif kind == "torchrun":
        if host is None:
            raise UsageError("--torchrun needs --host, the address of the first machine")
        text = torchrun(job, host)
    else:
        if image is None:
            raise UsageError("--kubernetes needs --image, a container image that has Quintain")
        text = kubernetes(job, image, claim)
    click.echo(text, nl=False)


def _devices(
    recipe: str, parsed: Recipe, overrides: Sequence[str], nodes: int, gpus: int
) -> Sequence[str]:
    """Return what each GPU does under the cluster `machine`; nothing without it.

    Raises:
        UsageError: the recipe has servers that would be on GPUs of the ranks, or does not fit.
    """
    if (parsed.cluster.use or "").rpartition("/")[2] == "machine":
        placed = Recipe.load(recipe, [*overrides, *placed_changes(nodes, gpus)])
        return placement_table(placement_of(RunPlan.of(with_placement(placed))))
    engine = engine_kind(parsed)
    if parsed.cluster.use is None and names_cluster(engine) and engine.places(parsed.engine.args):
        raise UsageError(
            f"engine {parsed.engine.use!r} starts servers, and the job has a rank on each GPU: set "
            'cluster.use = "machine" and cluster.args.learn to the number of GPUs that learn '
            "(docs/distributed.md), or give the servers' URLs"
        )
    return ()


def _checked_name(name: str) -> str:
    """Return *name* if it is one that folders, Slurm and Kubernetes take.

    Raises:
        UsageError: it is not.
    """
    if not NAMES.fullmatch(name):
        raise UsageError(
            f"the name {name!r} cannot be that of a job; say --name with lower-case letters, digits "
            "and hyphens"
        )
    return name
