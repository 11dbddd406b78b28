"""Pipeline parallelism: a model's layers over several ranks, a batch through them in microbatches (GPipe,
arXiv:1811.06965; 1F1B, arXiv:1806.03377), by torch's own schedules.

Shapes: B sequences of one microbatch, T positions, D width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from diloco.errors import BadInput
from diloco.shards import local
from diloco.train.loss import lm_loss
from diloco.train.model import Transformer
from diloco.train.parallel.place import Place
from diloco.train.precision import forward_precision

_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
# Without it a schedule keeps the logits of all microbatches; torch before 2.9 cannot do without.
_QUIET = {"return_outputs": False} if "return_outputs" in inspect.signature(Schedule1F1B.step).parameters else {}


class StageModule(nn.Module):
    """Consecutive layers of a Transformer under the names that they have in the whole model.

    Takes tokens (B, T) on the first stage, else (B, T, D); gives fp32 logits (B, T, V) on the last, else (B, T, D). A
    tied embedding is on both ends.
    """

    def __init__(self, model: Transformer, index: int, stages: int, precision: str) -> None:
        super().__init__()
        self.first, self.last, self.precision = index == 0, index == stages - 1, precision
        self.width, self.seq_len, self.vocab_size = model.size.dim, model.seq_len, model.vocab_size
        self.tied = model.tied and (self.first or self.last)
        own = layers_of(index, stages, len(model.blocks))
        if self.first or self.tied:
            self.embed = model.embed
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in own})
        if self.last:
            self.norm = model.norm
            self.head = model.head
        self.register_buffer("rope", model.rope, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with forward_precision(self.precision, self.rope.device):
            x_BTD = self.embed(x) if self.first else x
            for block in self.blocks.values():
                x_BTD = block(x_BTD, self.rope[: x_BTD.shape[1]])
            if not self.last:
                return x_BTD.float()
            x_BTD = self.norm(x_BTD)
            logits_BTV = F.linear(x_BTD, self.embed.weight) if self.head is None else self.head(x_BTD)
            return logits_BTV.float()

    def meta_input(self, sequences: int, positions: int) -> Tensor:
        if self.first:
            return torch.empty(sequences, positions, dtype=torch.int64, device="meta")
        return self.hidden(sequences, positions, "meta").requires_grad_()

    def meta_output(self, sequences: int, positions: int) -> Tensor:
        if self.last:
            return torch.empty(sequences, positions, self.vocab_size, device="meta", requires_grad=True)
        return self.hidden(sequences, positions, "meta").requires_grad_()

    def hidden(self, sequences: int, positions: int, device: torch.device | str) -> Tensor:
        """What travels between two stages, uninitialised."""
        return torch.empty(sequences, positions, self.width, device=device)


def layers_of(index: int, stages: int, layers: int) -> range:
    """The layers of a stage: as many each as can be, the earlier stages one more, since the last has the head."""
    share, extra = divmod(layers, stages)
    first = index * share + min(index, extra)
    return range(first, first + share + (index < extra))


def cut_into_stage(model: nn.Module, place: Place, precision: str) -> StageModule:
    """This rank's stage. Raises BadInput where the model cannot be cut into so many."""
    stages = place.shape.pp
    if not isinstance(model, Transformer):
        raise BadInput(f"mesh has pp={stages}, which works for the models named by size, not for hf: use fsdp or tp")
    if len(model.blocks) < stages:
        raise BadInput(f"mesh has pp={stages}, more than the model's {len(model.blocks)} layers: give at most as many")
    return StageModule(model, place.at["pp"], stages, precision)


class Pipeline:
    """Runs one stage of a replica's pipeline in step with the others."""

    def __init__(self, stage: StageModule, place: Place, schedule: str, microbatches: int, z_loss: float) -> None:
        self.stage, self.place, self.microbatches, self.z_loss = stage, place, microbatches, z_loss
        self.group = place.mesh["pp"].get_group()
        self.schedule_kind = _SCHEDULES[schedule]
        self._schedule: tuple[torch.Size, Schedule1F1B | ScheduleGPipe] | None = None
        self._nlls: list[Tensor] = []

    def forward_backward(self, batch_BT: Tensor) -> Tensor:
        """Mean nll of this data rank's sequences on the last stage, 0 on the others. Gradients are left in place."""
        self._nlls.clear()
        inputs_BT, targets_BT = batch_BT[:, :-1], batch_BT[:, 1:]
        schedule = self._schedule_for(inputs_BT.shape)
        if self.stage.first:
            schedule.step(inputs_BT, **_QUIET)
        elif self.stage.last:
            schedule.step(target=targets_BT, **_QUIET)
        else:
            schedule.step(**_QUIET)
        if self.stage.tied:
            self._sum_tied_gradient()
        return torch.stack(self._nlls).mean() if self.stage.last else torch.zeros((), device=self.place.device)

    def _schedule_for(self, shape: torch.Size) -> Schedule1F1B | ScheduleGPipe:
        if self._schedule is None or self._schedule[0] != shape:
            size = (shape[0] // self.microbatches, shape[1])
            stage = PipelineStage(
                self.stage,
                self.place.at["pp"],
                self.place.shape.pp,
                self.place.device,
                # Known beforehand, so that nothing is asked of the neighbours (which torch does with pickles).
                input_args=self.stage.meta_input(*size),
                output_args=self.stage.meta_output(*size),
                group=self.group,
            )
            schedule = self.schedule_kind(stage, self.microbatches, loss_fn=self._loss, scale_grads=False)
            self._schedule = shape, schedule
        return self._schedule[1]

    def _loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        loss, nll = lm_loss(logits_BTV, targets_BT, self.z_loss)
        self._nlls.append(nll.detach())
        return loss / self.microbatches

    def _sum_tied_gradient(self) -> None:
        """A tied embedding has one gradient from the lookup and one from the head; both ends get their sum."""
        gradient = local(self.stage.embed.weight.grad)
        if gradient.numel() == 0:
            return
        other = torch.empty_like(gradient)
        peer = self.place.shape.pp - 1 if self.stage.first else 0
        exchange = [
            dist.P2POp(dist.isend, gradient.contiguous(), group=self.group, group_peer=peer),
            dist.P2POp(dist.irecv, other, group=self.group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        gradient += other

    @torch.no_grad()
    def forward(self, tokens_BT: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor | None:
        """`use(logits)` on the last stage, None on the others."""
        index, x = self.place.at["pp"], tokens_BT
        if not self.stage.first:
            x = self.stage.hidden(*tokens_BT.shape, self.place.device)
            dist.recv(x, group=self.group, group_src=index - 1)
        x = self.stage(x)
        if self.stage.last:
            return use(x)
        dist.send(x, group=self.group, group_dst=index + 1)
        return None
