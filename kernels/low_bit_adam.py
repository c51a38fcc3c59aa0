"""An AdamW whose state takes 2 to 4 bytes a parameter in place of 8, by the operation `low_bit_adam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from autoprec.kernels.ops.low_bit_adam import Moment, low_bit_adam


class LowBitAdamW(torch.optim.Optimizer):
    """`torch.optim.AdamW` with moments of 8 or 16 bits, over float32 or bfloat16 parameters.

    Args:
        parameters: Parameters or groups of them, as of any optimizer of torch.
        lr: Learning rate.
        betas: Decay of the two means, in [0, 1).
        eps: Added to the root of the second; at least 0.
        weight_decay: Part of a parameter that is taken away at a learning rate of 1.
        first: Bits of the first moment, 8 or 16.
        second: Bits of the root of the second.
        stochastic: Round what has 8 or 16 bits stochastically, so that small changes add up.
        seed: Where the draws begin. They repeat from a saved state.

    Raises:
        ValueError: An argument is none of these.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        first: Literal[8, 16] = 8,
        second: Literal[8, 16] = 8,
        stochastic: bool = True,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "first": first,
            "second": second, "stochastic": stochastic, "seed": seed,
        }  # fmt: skip
        super().__init__(parameters, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, whose options may differ.

        Raises:
            ValueError: An option is out of range, or a parameter is neither float32 nor bfloat16.
        """
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @staticmethod
    def _check(group: Mapping[str, Any]) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= group[name] < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {group[name]}")
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
        for name in ("first", "second"):
            if group[name] not in (8, 16):
                raise ValueError(f"{name} must be 8 or 16 bits, got {group[name]!r}")
        for parameter in group["params"]:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise ValueError(f"parameters must be float32 or bfloat16, got {parameter.dtype}")

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do a step for every parameter that has a gradient; return what the closure returns.

        Raises:
            ValueError: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            place = 0
            for group in self.param_groups:
                for parameter in group["params"]:
                    place += 1
                    if parameter.grad is not None:
                        self._step_one(parameter, parameter.grad, group, place)
        return loss

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any], place: int) -> None:
        if gradient.layout is not torch.strided:
            raise ValueError(f"gradients must be dense, got {gradient.layout} of {tuple(gradient.shape)}")
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("first", "second"):
                state[name], state[f"{name}_scale"] = Moment.zeros(parameter, group[name])
        state["step"] += 1
        # Another seed for each parameter and step.
        seed = (group["seed"] + 1_000_003 * place + 7919 * state["step"]) % 2**31
        flat = parameter.detach().contiguous().view(-1)
        low_bit_adam(
            flat,
            gradient.contiguous().view(-1),
            Moment(state["first"], state["first_scale"]),
            Moment(state["second"], state["second_scale"]),
            step=state["step"],
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            seed=seed if group["stochastic"] else None,
        )
        if not parameter.is_contiguous():
            parameter.copy_(flat.view(parameter.shape))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, bit by bit.

        The class above casts what is held for a parameter to the type of the parameter.

        Raises:
            ValueError: The state is of another optimizer.
        """
        for group in state_dict["param_groups"]:
            if missing := sorted(self.defaults.keys() - group.keys()):
                raise ValueError(
                    f"the state has no {', '.join(missing)}: it is of another optimizer than LowBitAdamW"
                )
        super().load_state_dict(state_dict)
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        mine = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(saved, mine, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, copy=True)
