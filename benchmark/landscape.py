"""What each period of the state earns: the best encoder that Eq. (7) has for it, and the reward.

    python benchmark/landscape.py                           # L = 18, five minutes of one core
    python benchmark/landscape.py --L 10 --lam-2 5 10 --latent-dim 2 --out landscape.json

The encoder is a table, a free point for each of the P states of a cycle. So nothing here is about
networks, exploration or a robot: these are the hills that the paper's objective puts in front of a
policy (docs/traps.md). Writes a JSON, and the figure beside it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402

import plot  # noqa: E402
import psd  # noqa: E402

SHORTEST = 4  # steps of a cycle, from which the landscape starts


@dataclass
class Args:
    L: int = 18  # the period variable: the state should have a period of 2L
    lam_2: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0)  # multipliers of the side constraint
    latent_dim: tuple[int, ...] = (2, 3)  # dimensions of the latent space
    lam_1: float = 5.0  # multiplier of the diameter constraint
    k: float = 0.5  # weight of the centring term
    kappa: float = 10.0  # sharpness of r_PSD
    longest: float = 2.2  # periods up to this many times 2L
    out: str = "results/traps/landscape.json"  # the JSON; the figure stands beside it


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"landscape.py: error: {message}")


def encoder_objective(phi, L, k, lam_1, lam_2):
    """Eq. (7) of tables phi (..., P, d): their J, (...)."""
    next_phi, phi_L, L = phi.roll(-1, -2), phi.roll(-L, -2), torch.tensor(float(L))
    terms = psd.psd_objective(phi, phi_L, k)  # (..., P)
    terms = terms + lam_1 * psd.diameter_slack(phi, phi_L, L).clamp(max=0)
    return (terms + lam_2 * psd.side_slack(phi, next_phi, L).clamp(max=0)).mean(dim=-1)


def best_encoders(P, L, lam_2, d, k=0.5, lam_1=5.0, num_steps=1500):
    """For a state cycle of P steps and each lambda_2, the best table (len(lam_2), P, d) that Adam
    finds from circles with one, two and three turns."""
    angle = 2 * np.pi * np.arange(1, 4)[:, None] * np.arange(P) / P  # (3, P)
    start = 0.02 * np.random.default_rng(0).normal(size=(3, P, d))
    start[..., 0] += L / 4 * np.cos(angle)
    start[..., 1] += L / 4 * np.sin(angle)
    phi = torch.tensor(start).repeat(len(lam_2), 1, 1, 1).requires_grad_()  # (K, 3, P, d)
    multiplier, optimizer = torch.tensor(lam_2)[:, None, None], torch.optim.Adam([phi])
    for i in range(num_steps):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - i / num_steps)
        J = encoder_objective(phi, L, k, lam_1, multiplier)  # (K, 3)
        optimizer.zero_grad()
        (-J.sum()).backward()
        optimizer.step()
    return phi.detach()[torch.arange(len(lam_2)), J.argmax(dim=1)]


def earnings(phi, L, kappa=10.0):
    """Mean r_PSD and mean radius bonus of tables phi (..., P, d)."""
    L = torch.tensor(float(L))
    r_psd = psd.psd_reward(phi, phi.roll(-1, -2), L, kappa)
    return r_psd.mean(dim=-1), psd.radius_bonus(phi, L).mean(dim=-1)


def landscape(args):
    """One row a latent dimension, lambda_2 and period: what is earned there."""
    rows, periods = [], range(SHORTEST, int(2 * args.L * args.longest) + 1)
    for d in args.latent_dim:
        for P in periods:
            phi = best_encoders(P, args.L, args.lam_2, d, args.k, args.lam_1)
            r_psd, bonus = earnings(phi, args.L, args.kappa)
            for lam_2, r, b in zip(args.lam_2, r_psd.tolist(), bonus.tolist()):
                row = {"latent_dim": d, "lam_2": lam_2, "P": P}
                rows.append(row | {"r_psd": round(r, 4), "bonus": round(b, 4)})
            print(f"\rd = {d}, P = {P} of {periods[-1]}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def draw(rows, L):
    """Above the paper's reward, below with the radius bonus; a column a latent dimension."""
    dims, lams = (sorted({row[key] for row in rows}) for key in ("latent_dim", "lam_2"))
    size = (plot.WIDTH, 4.2)
    fig, axes = plt.subplots(2, len(dims), figsize=size, sharex=True, sharey="row", squeeze=False)
    for column, d in zip(axes.T, dims):
        for i, lam_2 in enumerate(lams):
            own = [row for row in rows if row["latent_dim"] == d and row["lam_2"] == lam_2]
            P, r, b = np.array([(row["P"], row["r_psd"], row["bonus"]) for row in own]).T
            shade = plt.get_cmap("viridis")(0.9 * i / max(len(lams) - 1, 1))
            column[0].plot(P, r, color=shade, label=f"$\\lambda_2$ = {lam_2:g}")
            column[1].plot(P, r + b, color=shade)
        for ax in column:
            for P, name in [(2 * L / 3, "2L/3"), (2 * L, "2L"), (4 * L, "4L")]:
                ax.axvline(P, color=plot.GREY, lw=0.5, ls=":", zorder=0)
                ax.annotate(name, (P, 1.0), xycoords=ax.get_xaxis_transform(), color=plot.GREY)
        column[0].set_title(f"d = {d}, L = {L}", pad=12)
        column[1].set_xlabel("period of the state [steps]")
    axes[0, 0].set_ylabel("$r_{PSD}$")
    axes[1, 0].set_ylabel("$r_{PSD}$ and radius bonus")
    axes[0, -1].legend(loc="lower right")
    return fig


def main():
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)
    out = Path(args.out)
    if min(args.L, min(args.latent_dim, default=0)) < 2 or min(args.lam_2, default=0) <= 0:
        fail("L and latent dimensions have to be 2 or more, lambda_2 above 0")
    if 2 * args.L * args.longest < SHORTEST:
        fail(f"no period from {SHORTEST} on is up to {args.longest} times 2L: raise --longest")
    if out.suffix != ".json" or not out.parent.is_dir():
        fail(f"--out {out} has to end in .json, in a folder that exists")
    rows = landscape(args)
    out.write_text(json.dumps({"args": vars(args), "rows": rows}) + "\n")
    with plt.rc_context(plot.STYLE):
        draw(rows, args.L).savefig(out.with_suffix(".png"))
    print(f"wrote {out} and {out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
