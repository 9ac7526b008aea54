"""What each period of the state earns: the best encoder that Eq. (7) has for it, and the reward.

    python benchmark/landscape.py                           # L = 18, five minutes of one core
    python benchmark/landscape.py --L 10 --lam-2 5 10 --latent-dim 2 --out landscape.json

The encoder is a table, a free point for each of the P states of a cycle. So nothing here is about
networks, exploration or a robot: these are the hills that the paper's objective puts in front of a
policy (docs/traps.md). Writes a JSON, and the figure beside it.
"""

import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402

import plot  # noqa: E402
import psd  # noqa: E402

SHORTEST = 4  # steps of a cycle, from which the landscape starts
RESOLUTION = 0.1  # of the decoder, as a share of the radius: it does not part closer latents
PSD_COEF = 2.0  # weights of the preset: r_PSD and regularity, both times turn
REGULARITY_COEF = 5.0


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


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"landscape.py: error: {' '.join(str(message).split())}")


def check_args(args):
    """Refuses, before any work, values that make no sense."""
    if args.L < 2:
        fail(f"--L {args.L} is too small: give 2 or more")
    if not args.latent_dim or min(args.latent_dim) < 2:
        fail("--latent-dim needs at least one dimension, and a circle lies in 2 or more")
    if not args.lam_2:
        fail("--lam-2 needs at least one number above 0")
    for lam_2 in args.lam_2:
        if not math.isfinite(lam_2) or lam_2 <= 0:
            fail(f"--lam-2 {lam_2} is no multiplier: give finite numbers above 0")
    for name in ("lam_1", "k"):
        value = getattr(args, name)
        if not math.isfinite(value) or value < 0:
            fail(
                f"--{name.replace('_', '-')} {value} is no weight: give a finite number, 0 or more"
            )
    for name in ("kappa", "longest"):
        value = getattr(args, name)
        if not math.isfinite(value) or value <= 0:
            fail(f"--{name} {value} makes no sense: give a finite number above 0")
    if 2 * args.L * args.longest < SHORTEST:
        fail(f"no period from {SHORTEST} on is up to {args.longest} times 2L: raise --longest")
    out = Path(args.out)
    if out.is_dir() or out.with_suffix(".png").is_dir():
        fail(f"--out {out} or its .png is a folder: give a file that ends in .json")
    if out.suffix != ".json" or not out.parent.is_dir():
        fail(f"--out {out} has to end in .json, in a folder that exists")


# ------------------------------ What is taken from psd.py -----------------------------
def encoder_objective(phi, L, k, lam_1, lam_2):
    """Eq. (7) of tables phi (..., P, d): their J, (...)."""
    phi_next = phi.roll(-1, -2)
    phi_opposite = phi.roll(-L, -2)
    L = torch.tensor(float(L))
    J = psd.psd_objective(phi, phi_opposite, k)  # (..., P)
    J = J + lam_1 * psd.diameter_slack(phi, phi_opposite, L).clamp(max=0)
    J = J + lam_2 * psd.side_slack(phi, phi_next, L).clamp(max=0)
    return J.mean(dim=-1)


def paper_earnings(phi, L, kappa=10.0):
    """Mean r_PSD of tables phi (..., P, d)."""
    r_psd = psd.psd_reward(phi, phi.roll(-1, -2), torch.tensor(float(L)), kappa)  # (..., P)
    return r_psd.mean(dim=-1)


def our_earnings(phi, L, kappa):
    """Means of turn, turn times r_PSD and turn times regularity, of a table phi (P, 2). The state
    goes round a unit circle in P steps."""
    P = len(phi)
    angle = 2 * torch.pi * torch.arange(P, dtype=phi.dtype) / P
    states = torch.stack([angle.cos(), angle.sin()], dim=1)  # (P, 2)
    periods = torch.full((P,), float(L), dtype=phi.dtype)
    decoded = nearby_mean(phi, states, width=RESOLUTION * L / 2)
    regular = psd.regularity(decoded, states, periods)  # (P,), of s'
    turned = psd.turn(phi.roll(1, 0), phi, periods)
    r_psd = psd.psd_reward(phi.roll(1, 0), phi, periods, kappa)
    return [term.mean().item() for term in (turned, turned * r_psd, turned * regular)]


def nearby_mean(phi, states, width):
    """What a decoder can know: the mean of the states whose latents are near, (P, D)."""
    distance = torch.cdist(phi, phi)  # (P, P)
    weight = torch.exp(-((distance / width) ** 2))
    return weight @ states / weight.sum(dim=1, keepdim=True)


# -------------------------------------- Landscape -------------------------------------
def starting_tables(P, L, d):
    """Circles (3, P, d) with one, two and three turns, of half the right size, with some noise."""
    turns = np.arange(1, 4)[:, None]
    angle = 2 * np.pi * turns * np.arange(P) / P  # (3, P)
    tables = 0.02 * np.random.default_rng(0).normal(size=(3, P, d))
    tables[..., 0] += L / 4 * np.cos(angle)
    tables[..., 1] += L / 4 * np.sin(angle)
    return torch.tensor(tables)


def best_encoders(P, L, lam_2, d, k=0.5, lam_1=5.0, num_steps=1500):
    """For a state cycle of P steps and each lambda_2, the best table (len(lam_2), P, d) that Adam
    finds from circles with one, two and three turns."""
    phi = starting_tables(P, L, d).repeat(len(lam_2), 1, 1, 1)  # (K, 3, P, d)
    phi.requires_grad_()
    multiplier = torch.tensor(lam_2)[:, None, None]
    optimizer = torch.optim.Adam([phi])
    for i in range(num_steps):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - i / num_steps)
        J = encoder_objective(phi, L, k, lam_1, multiplier)  # (K, 3)
        optimizer.zero_grad()
        (-J.sum()).backward()
        optimizer.step()
    best = J.argmax(dim=1)  # (K,)
    return phi.detach()[torch.arange(len(lam_2)), best]


def landscape(args):
    """One row per latent dimension, lambda_2 and period: what is earned there."""
    rows = []
    last = int(2 * args.L * args.longest)
    for d in args.latent_dim:
        for P in range(SHORTEST, last + 1):
            phi = best_encoders(P, args.L, args.lam_2, d, args.k, args.lam_1)
            r_psd = paper_earnings(phi, args.L, args.kappa)
            for i, lam_2 in enumerate(args.lam_2):
                row = {"latent_dim": d, "lam_2": lam_2, "P": P}
                row["r_psd"] = round(r_psd[i].item(), 4)
                if d == 2:  # turn has a direction, in a plane
                    earned = our_earnings(phi[i], args.L, args.kappa)
                    for name, value in zip(("turn", "turn_psd", "turn_regularity"), earned):
                        row[name] = round(value, 4)
                rows.append(row)
            print(f"\rd = {d}, P = {P} of {last}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def draw(rows, L):
    """Above the paper's reward, below our terms; a column per dimension."""
    dims = sorted({row["latent_dim"] for row in rows})
    size = (plot.WIDTH, 4.2)
    fig, axes = plt.subplots(2, len(dims), figsize=size, sharex=True, sharey="row", squeeze=False)
    for column, d in zip(axes.T, dims):
        draw_dimension(column, [row for row in rows if row["latent_dim"] == d])
        for ax in column:
            mark_period(ax, 2 * L / 3, "2L/3")
            mark_period(ax, 2 * L, "2L")
            mark_period(ax, 4 * L, "4L")
        column[0].set_title(f"d = {d}, L = {L}", pad=12)
        column[1].set_xlabel("period of the state [steps]")
        if d > 2:
            column[1].text(0.5, 0.5, "turn needs d = 2", transform=column[1].transAxes, ha="center")
    axes[0, 0].set_ylabel("$r_{PSD}$")
    factor = f"(1 + {PSD_COEF:g} $r_{{PSD}}$ + {REGULARITY_COEF:g} regularity)"
    axes[1, 0].set_ylabel(f"turn ×\n{factor}")
    axes[0, -1].legend(loc="lower right")
    return fig


def draw_dimension(column, rows):
    """One curve per lambda_2 in each axes, of the rows of one latent dimension."""
    top, bottom = column
    multipliers = sorted({row["lam_2"] for row in rows})
    for i, lam_2 in enumerate(multipliers):
        own = [row for row in rows if row["lam_2"] == lam_2]
        periods = [row["P"] for row in own]
        r_psd = [row["r_psd"] for row in own]
        shade = plt.get_cmap("viridis")(0.9 * i / max(len(multipliers) - 1, 1))
        top.plot(periods, r_psd, color=shade, label=f"$\\lambda_2$ = {lam_2:g}")
        if "turn" in own[0]:
            bottom.plot(periods, [our_reward(row) for row in own], color=shade)


def our_reward(row):
    """The rhythm of the preset, from the means of a row."""
    in_turn = PSD_COEF * row["turn_psd"] + REGULARITY_COEF * row["turn_regularity"]
    return row["turn"] + in_turn


def mark_period(ax, P, name):
    ax.axvline(P, color=plot.GREY, lw=0.5, ls=":", zorder=0)
    ax.annotate(name, (P, 1.0), xycoords=ax.get_xaxis_transform(), color=plot.GREY)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_args(args)
    torch.set_num_threads(1)
    out = Path(args.out)
    picture = out.with_suffix(".png")
    rows = landscape(args)
    text = json.dumps({"args": vars(args), "rows": rows}) + "\n"
    with plt.rc_context(plot.STYLE):
        fig = draw(rows, args.L)
        try:
            plot.write_whole(out, partial(Path.write_text, data=text))
            plot.write_whole(picture, fig.savefig)
        except OSError as error:
            fail(f"{out} cannot be written ({error.strerror}): free space, or give another --out")
        finally:
            plt.close(fig)
    print(f"wrote {out} and {picture}")


if __name__ == "__main__":
    main()
