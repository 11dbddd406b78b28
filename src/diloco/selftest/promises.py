"""The promises that one process can try. Each returns what was found, with the number that shows it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch
from torch import nn

import diloco
from diloco import checkpoint
from diloco.outer.tensors import clean_name
from diloco.selftest.fleet import Member, fleet, march
from diloco.selftest.measure import between, first_difference, mean_of, worst_ulp
from diloco.selftest.subject import Subject

ULP_BOUND = 2.0
OUTER = diloco.Nesterov(lr=0.7, momentum=0.9)
"""For the promises that hold with any outer optimizer; momentum, so that its state counts."""


@dataclass(frozen=True)
class Finding:
    promise: str
    ok: bool
    evidence: str
    """The number that shows it."""
    meaning: str
    """What it means for a training run where it is broken."""


def lands_on_the_mean(subject: Subject, replicas: int, sync_every: int) -> Finding:
    """One round at outer lr 1 gives the mean, at 0.5 half the way, and all replicas the same bits."""
    worst, where, equal, spread = 0.0, "", True, 0.0
    for lr in (1.0, 0.5):
        members = fleet(subject, replicas, sync_every, diloco.SGD(lr=lr), hook=False)
        start = members[0].anchor()
        seen = _window(members, sync_every)
        spread = max((seen[0][n].double() - seen[1][n].double()).abs().max().item() for n in start)
        for member in members:
            member.sync.step()
        off, name = worst_ulp(members[0].anchor(), between(start, mean_of(seen), lr), [start, *seen])
        worst, where = max((worst, where), (off, name))
        equal = equal and all(first_difference(members[0].weights(), m.weights()) is None for m in members)
    evidence = f"at most {worst:.2f} ulp off at outer lr 1 and 0.5, replicas {'' if equal else 'NOT '}bit-identical"
    return Finding(
        "a round lands on the mean of replicas that differ",
        worst <= ULP_BOUND and equal and spread > 0,
        evidence + (f" (worst in {where})" if worst > ULP_BOUND else "" if spread else "; the replicas did not differ"),
        "the replicas' work is averaged wrongly or not at all: training would go on and be worth little",
    )


def every_tensor_once(subject: Subject, replicas: int, sync_every: int) -> Finding:
    """Replicas are set apart by known offsets, so that a tensor left out, or taken twice, shows by name."""
    members = fleet(subject, replicas, 1, diloco.SGD(lr=0.5), hook=False)
    start, model = members[0].anchor(), members[0].model
    trained = {clean_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    persistent = model.state_dict().keys()
    buffers = [n for n, b in model.named_buffers() if n in persistent and b.is_floating_point()]
    still = [n for n, p in model.named_parameters() if not p.requires_grad]
    still += [n for n, b in model.named_buffers() if n in persistent and not b.is_floating_point()]
    before = {n: t.clone() for n, t in _tensors(model).items()}
    seen, set_buffers = [], []
    for member in members:
        seen.append(_set_apart(member))
        set_buffers.append({n: _tensors(member.model)[n].double().clone() for n in buffers})
    for member in members:
        member.sync.step()
    found = members[0].anchor()
    off, where = worst_ulp(found, between(start, mean_of(seen), 0.5), [start, *seen]) if found else (0.0, "")
    faults = [f"{n} is not merged" for n in trained if n not in found]
    faults += [f"{where} is {off:.0f} ulp from half way"] if off > ULP_BOUND else []
    after = _tensors(model)
    faults += [f"{n} is not to change but did" for n in still if not torch.equal(after[n], before[n])]
    means = mean_of(set_buffers) if buffers else {}
    faults += [f"buffer {n} is not averaged" for n in buffers if not torch.equal(after[n], means[n].to(after[n].dtype))]
    merged, owned = sum(v.numel() for v in found.values()), sum(p.numel() for p in trained.values())
    if merged != owned:
        faults.append(f"{merged:,} elements merged of {owned:,} trainable")
    return Finding(
        "every trained tensor takes part exactly once",
        not faults,
        "; ".join(faults[:3]) or _roll(model, merged, owned, len(trained), len(buffers)),
        "part of the model would never be synchronised, or be moved when it should not",
    )


def resumes_bit_equal(subject: Subject, replicas: int, sync_every: int) -> Finding:
    """Stopped in mid-window, through a checkpoint on disk, into new replicas."""
    stop, last = sync_every + max(sync_every // 2, 1), 3 * sync_every + 1
    unbroken = fleet(subject, replicas, sync_every, OUTER)
    march(unbroken, 0, last)
    first = fleet(subject, replicas, sync_every, OUTER)
    march(first, 0, stop)
    second = fleet(subject, replicas, sync_every, OUTER)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(folder, stop, {f"replica-{m.rank}": m.tree() for m in first}, meta={})
        trees, _ = checkpoint.load(path)
    for member in second:
        member.restore(trees[f"replica-{member.rank}"])
    march(second, stop, last)
    pairs = zip(unbroken, second, strict=True)
    differs = next(filter(None, (first_difference(_state(a), _state(b)) for a, b in pairs)), None)
    return Finding(
        "a resume is bit-equal",
        differs is None,
        f"stopped at inner step {stop} of {last}, {stop % sync_every} into a window: "
        + (f"{differs} differs" if differs else f"checksum {second[0].sync.checksum()} as without the stop"),
        "a run that is stopped and resumed would be another run: some state is not in the checkpoint, or the model "
        "draws on randomness that is not seeded",
    )


def nan_is_left_out(subject: Subject, replicas: int, sync_every: int) -> Finding:
    """The last replica's weights are spoilt just before a round."""
    members = fleet(subject, replicas, sync_every, diloco.SGD(lr=1.0), hook=False)
    start, bad = members[0].anchor(), members[-1]
    seen = _window(members, sync_every)
    with torch.no_grad():
        next(iter(bad.sync.tensors.trained.values())).view(-1)[0] = torch.nan
    for member in members:
        member.sync.step()
    report, found = members[0].sync.rounds[-1], members[0].anchor()
    healthy = seen[:-1]
    off, _ = worst_ulp(found, mean_of(healthy), [start, *healthy])
    reset = first_difference(bad.weights(), members[0].weights()) is None
    goes_on = all(torch.isfinite(torch.tensor(m.inner_step(sync_every))) for m in members)
    ok = report.left_out == [bad.rank] and report.committed and off <= ULP_BOUND and reset and goes_on
    return Finding(
        "a replica that turns NaN is left out and reset",
        ok,
        f"left out {report.left_out}, the others' mean {off:.2f} ulp off, reset {'yes' if reset else 'NO'}, "
        f"next loss {'finite' if goes_on else 'NOT finite'}",
        "one bad replica would spoil the weights of all",
    )


def _window(members: list[Member], sync_every: int) -> list[dict]:
    """Runs a window up to just before its round; returns the replicas' weights there."""
    for step in range(sync_every):
        for member in members:
            member.inner_step(step)
            if step < sync_every - 1:
                member.sync.step()
    return [member.weights() for member in members]


def _set_apart(member: Member) -> dict:
    """Moves every trained tensor and float buffer by an offset of the replica's own; returns the trained ones."""
    offset = 0.0625 * (member.rank + 1)
    with torch.no_grad():
        for tensor in [*member.sync.tensors.trained.values(), *member.sync.tensors.averaged.values()]:
            tensor.add_(offset)
    return member.weights()


def _tensors(model: nn.Module) -> dict:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def _state(member: Member) -> dict:
    return _tensors(member.model) | {f"anchor of {name}": value for name, value in member.anchor().items()}


def _roll(model: nn.Module, merged: int, owned: int, tensors: int, buffers: int) -> str:
    parts = [f"{merged:,} of {owned:,} trainable elements in {tensors} tensors"]
    once = {n for n, _ in model.named_parameters()}
    tied = [n for n, _ in model.named_parameters(remove_duplicate=False) if n not in once]
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    for label, names in (("tied, taken once", tied), ("frozen, left alone", frozen)):
        if names:
            parts.append(f"{len(names)} {label} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})")
    if buffers:
        parts.append(f"{buffers} float buffers averaged")
    return "; ".join(parts)
