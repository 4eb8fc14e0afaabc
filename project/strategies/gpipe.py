"""A network's forward and backward pass through the stages of a pipeline, each in a process of its own.

The order is that of Huang et al., "GPipe" (2019), in two halves: all chunks of a batch go forward when the network is
called, and all go backward when autograd comes to what it returned. So any loss can be computed in between.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from project.nn import SequenceClassifier
from project.nn.encoder import to_residual_precision


class GPipe(PipelineScheduleSingle):
    """Stands between one call of a network and its gradient."""

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """All chunks forward; `step` calls it and returns their outputs as one on the last process."""
        inputs, options = self._check_inputs(arg_mbs, kwarg_mbs)
        self._initialize_stage(inputs[0], options[0])
        sent: list[dist.Work] = []
        for i in range(self._n_microbatches):
            wait(start(self._stage.get_fwd_recv_ops(i)))
            self._stage.forward_one_chunk(i, inputs[i], options[i])
            sent += start(self._stage.get_fwd_send_ops(i))
        wait(sent)

    def backward(self, gradient: Tensor) -> None:
        """All chunks backward; parameters get their gradients.

        Args:
            gradient: with respect to the outputs of all chunks; the last process' is taken. Rows may be missing at its
                end: of outputs that nobody used.
        """
        sent: list[dist.Work] = []
        for i in range(self._n_microbatches):
            wait(start(self._stage.get_bwd_recv_ops(i)))
            loss: Tensor | None = None
            if self._stage.is_last:
                output = self._stage.output_chunks[i]
                part = gradient[i * len(output) :][: len(output)]
                loss = (output[: len(part)] * part).sum()
            self._stage.backward_one_chunk(i, loss)
            sent += start(self._stage.get_bwd_send_ops(i))
        wait(sent)


def start(operations: list[dist.P2POp]) -> list[dist.Work]:
    return dist.batch_isend_irecv(operations) if operations else []


def wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


class Part(nn.Module):
    """A cut network by what its class computes, whatever the object's own `forward` is."""

    def __init__(self, network: SequenceClassifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, padding_mask_BT: Tensor) -> Tensor:
        return type(self.network).forward(self.network, x, padding_mask_BT)


class PipelinedForward:
    """Takes the place of a cut network's `forward`: the same tokens in and the same logits out, on every process.

    Args:
        network: what `project.nn.stages.cut` left of it here.
        chunks: how many a batch is cut into.
        device: of this process.
    """

    def __init__(self, network: SequenceClassifier, chunks: int, device: torch.device) -> None:
        self.part, self.chunks, self.device = Part(network), chunks, device
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1

    def __call__(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.run(tokens_BT, padding_mask_BT)[0]
        differentiable = torch.zeros((), device=self.device, requires_grad=True)
        logits_BC: Tensor = PassThroughStages.apply(self, tokens_BT, padding_mask_BT, differentiable)
        return logits_BC

    def run(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> tuple[Tensor, GPipe]:
        """Logits, and what to ask for the backward pass if gradients are enabled."""
        rows, several = len(tokens_BT), min(self.chunks, len(tokens_BT))
        again_B = torch.arange(-(-rows // several) * several, device=tokens_BT.device) % rows  # chunks are of one size
        tokens_BT, padding_mask_BT = tokens_BT[again_B], padding_mask_BT[again_B]
        schedule = GPipe(
            self.stage(len(again_B) // several, tokens_BT),
            several,
            loss_fn=torch.sum if torch.is_grad_enabled() else None,  # never called: it says that gradients are wanted
            scale_grads=False,
        )
        inputs = [tokens_BT] if self.rank == 0 else []
        logits_BC = schedule.step(*inputs, padding_mask_BT=padding_mask_BT)
        return self.on_every_process(logits_BC)[:rows], schedule

    def stage(self, rows: int, tokens_BT: Tensor) -> PipelineStage:
        """Told what it receives and sends, for this shape of a batch, so that torch need not run it to find out."""
        encoder: Any = self.part.network.encoder
        weight = next(encoder.parameters())
        hidden_BTD = to_residual_precision(weight.new_empty(0)).new_empty(
            (rows, tokens_BT.size(1), encoder.d_model), device="meta", requires_grad=torch.is_grad_enabled()
        )
        first = tokens_BT[:rows].to("meta") if self.rank == 0 else hidden_BTD
        return PipelineStage(self.part, self.rank, self.last + 1, self.device, input_args=first, output_args=hidden_BTD)

    def on_every_process(self, logits_BC: Tensor | None) -> Tensor:
        described: list[Any] = [None if logits_BC is None else (logits_BC.shape, logits_BC.dtype)]
        dist.broadcast_object_list(described, self.last, device=self.device)
        shape, dtype = described[0]
        answer_BC = torch.empty(shape, dtype=dtype, device=self.device) if logits_BC is None else logits_BC.detach()
        dist.broadcast(answer_BC, self.last)
        return answer_BC


class PassThroughStages(torch.autograd.Function):
    """All stages as one operation of autograd, of which the parameters' gradients are a side effect."""

    @staticmethod
    def forward(ctx: Any, forward: PipelinedForward, tokens_BT: Tensor, padding_mask_BT: Tensor, _: Tensor) -> Tensor:
        with torch.enable_grad():
            # Each stage has random numbers of its own, and leaves those of the task alike on all processes.
            seed, devices = int(torch.randint(2**62, ())), [] if forward.device.type == "cpu" else [forward.device]
            with torch.random.fork_rng(devices):
                torch.manual_seed(seed + forward.rank)
                logits_BC, ctx.schedule = forward.run(tokens_BT, padding_mask_BT)
        return logits_BC

    @staticmethod
    def backward(ctx: Any, gradient_BC: Tensor) -> tuple[None, None, None, None]:  # type: ignore[override]
        with torch.enable_grad():
            ctx.schedule.backward(gradient_BC)
        return None, None, None, None
