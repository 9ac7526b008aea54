"""The benchmark runs, and counts the products that an update really does. Times are no test."""

import json
import sys

import pytest
import torch
from conftest import REPO
from test_sac import CountProducts

import psd

sys.path.insert(0, str(REPO / "benchmark"))
import speed  # noqa: E402


def test_the_limit_counts_every_product_of_an_update_and_no_other():
    args, agent, buffer = speed.make(hidden=16, transitions=1000)
    of_phi, of_sac = speed.needed_products(args, 17, 6)
    with CountProducts() as count:
        psd.update(agent, buffer, args)
    assert len(of_phi + of_sac) == count.addmm + count.mm
    shapes = []

    class Shapes(CountProducts):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
                a, b = args[-2:]
                shapes.append(a.shape[0] * a.shape[1] * b.shape[1])
            return func(*args, **(kwargs or {}))

    with Shapes():
        psd.update(agent, buffer, args)
    assert sorted(shapes) == sorted(m * k * n for m, k, n in of_phi + of_sac)


def test_every_part_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "ROBOTS", ["Hopper-v4"])
    flags = "--rounds 1 --hidden 16 --robots Hopper-v4 --only update collect epoch --out out.json"
    monkeypatch.setattr(sys, "argv", ["speed.py", *flags.split()])
    speed.main()
    result = json.loads((tmp_path / "out.json").read_text())
    ratios = result["update"]["hidden 16"]
    assert all(value > 0 for value in ratios.values())
    assert ratios["sac_over_sb3"] == pytest.approx(ratios["sb3_sac_ms"] / ratios["sac_ms"])
    assert result["collect"]["Hopper-v4"]["batch_over_ours"] > 0  # its bits were Gymnasium's
    shares = [value for name, value in result["epoch"]["hidden 16"].items() if "share" in name]
    assert sum(shares) == pytest.approx(1)


def test_an_unknown_part_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--only", "everything"])
    with pytest.raises(SystemExit, match="no part 'everything': choose from update, collect"):
        speed.main()
