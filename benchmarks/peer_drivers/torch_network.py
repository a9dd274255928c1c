"""The agreed convolutions in torch, for the systems that use it."""

from torch import nn

from benchmarks.peer_drivers.settings import SHALLOW, SHALLOW_DENSE


def shallow(channels: int = 4, size: int = 84) -> nn.Sequential:
    """[B, channels, size, size] float32 to [B, SHALLOW_DENSE]."""
    layers: list[nn.Module] = []
    for filters, kernel, stride in SHALLOW:
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        channels, size = filters, (size - kernel) // stride + 1
    dense = nn.Linear(channels * size * size, SHALLOW_DENSE)
    return nn.Sequential(*layers, nn.Flatten(), dense, nn.ReLU())


def parameters(*modules: nn.Module) -> int:
    """Weights of all modules, each counted once."""
    found = {id(weight): weight.numel() for module in modules for weight in module.parameters()}
    return sum(found.values())
