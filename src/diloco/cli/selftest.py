"""`diloco selftest`: the promises, tried on the user's own model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput

DEFAULT_SIZE = "30k"


@dataclass(frozen=True)
class SelftestOptions(Common):
    """Tries the promises on a model, on this machine's CPU, before training is paid for: a line each, with the number
    that shows it. Exit code 1 where one is broken.

    Your own model comes from a Python file with two functions: FACTORY, which takes nothing and returns an nn.Module,
    and `make_batch(step, replica)`, which returns a tuple of tensors (make it depend on both numbers). `model(*batch)`
    gives a scalar loss, something with a `.loss`, or any tensor, whose mean square then serves as the loss. A function
    `make_optimizer(model)`, if there is one, gives the inner optimizer; else it is AdamW.
    """

    size: str = ""
    """A size by name, as in `diloco train`; 30k where nothing is given."""
    model: str = ""
    """Your own: FILE.py:FACTORY, as in net.py:make_model."""
    hf: str = ""
    """A Hugging Face causal language model: a local folder or a hub name (extra [hf])."""
    replicas: int = 2
    """M: replicas in one process, and processes started to compare with."""
    sync_every: int = 4
    """H: inner steps between two outer steps."""

    def __post_init__(self) -> None:
        given = [name for name in ("size", "model", "hf") if getattr(self, name)]
        if len(given) > 1:
            value = getattr(self, given[1])
            raise BadInput(f"{given[1]} is {value} although {given[0]} is given too: give one of size, model and hf")
        if self.replicas < 2:
            raise BadInput(f"replicas is {self.replicas}: give 2 or more, since one replica has nobody to sync with")
        if self.sync_every < 2:
            raise BadInput(f"sync_every is {self.sync_every}: give 2 or more, so that there is a step between syncs")


def run(arguments: list[str]) -> int:
    options = parse(SelftestOptions, arguments, "selftest")
    from diloco.selftest.subject import Choice
    from diloco.selftest.suite import run_all

    size = options.size or ("" if options.model or options.hf else DEFAULT_SIZE)
    choice = Choice(size=size, model=options.model, hf=options.hf)
    findings = []
    with progress(f"testing {choice}", quiet=options.json) as update:
        for finding in run_all(choice, options.replicas, options.sync_every):
            findings.append(finding)
            update(f"testing {choice}", len(findings) / (len(findings) + 1))
            if not options.json:
                print(f"{'PASS' if finding.ok else 'FAIL'}  {finding.promise}: {finding.evidence}", flush=True)
                if not finding.ok:
                    print(f"      this means: {finding.meaning}", flush=True)
    ok = all(finding.ok for finding in findings)
    if options.json:
        facts = {"ok": ok, "model": str(choice), "replicas": options.replicas, "sync_every": options.sync_every}
        print_json({**facts, "promises": [dataclasses.asdict(f) for f in findings]})
    else:
        print(f"{sum(f.ok for f in findings)} of {len(findings)} promises hold for {choice}")
    return 0 if ok else 1
