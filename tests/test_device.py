"""Nothing in the update may ask the host or sit on the wrong device: one update on `meta`."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import psd


class Devices(TorchDispatchMode):
    """Notes the device of every tensor that enters an operation."""

    def __init__(self):
        super().__init__()
        self.strangers = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for x in torch.utils._pytree.tree_leaves((args, kwargs or {})):
            if torch.is_tensor(x) and x.device.type != "meta":
                self.strangers.append((str(func), tuple(x.shape)))
        return func(*args, **(kwargs or {}))


def strangers(agent, buffer, args):
    """Tensors of an update that are not on `meta`, but for the step counters of unfused Adam."""
    with Devices() as devices:
        metrics = psd.update(agent, buffer, args)
    assert {value.device.type for value in metrics.values()} == {"meta"}
    return [stranger for stranger in devices.strangers if stranger[1] != ()]


def test_an_update_runs_on_meta_with_every_tensor_there(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args, device="meta")
    assert strangers(agent, buffer, tiny_args) == []


def test_the_check_bites(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args, device="meta")
    buffer.velocity = torch.zeros(
        len(buffer.obs)
    )  # left behind on the host, and `meta` lets it pass
    try:
        assert strangers(agent, buffer, tiny_args) != []
    except RuntimeError as error:  # or torch itself says so, where it adds the two
        assert "device" in str(error)


class HostCalls(TorchFunctionMode):
    """Notes what would make a GPU wait: reading a value, or a shape that depends on values."""

    names = {
        "item",
        "tolist",
        "cpu",
        "numpy",
        "nonzero",
        "masked_select",
        "__bool__",
        "__float__",
        "__int__",
    }

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        boolean_mask = name == "__getitem__" and any(
            torch.is_tensor(i) and i.dtype == torch.bool
            for i in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        if name in self.names or boolean_mask:
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


def test_an_update_never_asks_the_host(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)  # on the CPU such calls would go through
    with HostCalls() as host:
        psd.update(agent, buffer, tiny_args)
    assert host.calls == []
    with HostCalls() as host:  # and the spy sees them
        psd.update(agent, buffer, tiny_args)["losses/alpha"].item()
        buffer.obs[buffer.terminated]
    assert host.calls == ["item", "__getitem__"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_update_on_cuda_does_not_synchronise(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args, device="cuda")
    psd.update(agent, buffer, tiny_args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        psd.update(agent, buffer, tiny_args)
    finally:
        torch.cuda.set_sync_debug_mode("default")
