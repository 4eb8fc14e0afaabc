"""What every encoder does, tried before it is trained."""

import torch
from torch import nn

CONTRACT = "an encoder has d_model, a number, and maps (B, T, d_model) and a padding mask (B, T) to (B, T, d_model)"


@torch.no_grad()
def d_model_of(encoder: nn.Module) -> int:
    """An encoder's width, once it has mapped a small batch: a wrong shape is said here, not deep within a step.

    Raises:
        ValueError: it has no width, fails, or gives another shape.
    """
    name, d_model = type(encoder).__name__, getattr(encoder, "d_model", None)
    if not isinstance(d_model, int):
        raise ValueError(f"{name} has d_model {d_model!r}; {CONTRACT}")
    device = next((parameter.device for parameter in encoder.parameters()), None)
    if device == torch.device("meta"):  # where nothing is computed
        return d_model
    x_BTD = torch.zeros(3, 2, d_model, device=device)
    mask_BT = torch.ones(3, 2, dtype=torch.bool, device=device)
    training = encoder.training
    try:
        y_BTD = encoder.eval()(x_BTD, mask_BT)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        cause = str(error).partition("\n")[0]
        raise ValueError(f"{name} fails on {tuple(x_BTD.shape)}: {cause}; {CONTRACT}") from error
    finally:
        encoder.train(training)
    if not isinstance(y_BTD, torch.Tensor) or y_BTD.shape != x_BTD.shape:
        shape = tuple(y_BTD.shape) if isinstance(y_BTD, torch.Tensor) else type(y_BTD).__name__
        raise ValueError(f"{name} made {shape} of {tuple(x_BTD.shape)}; {CONTRACT}")
    return d_model
