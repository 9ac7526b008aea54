"""The paper's figures, from the JSON of evaluate.py alone (Figure 9: from TensorBoard files).

    python plot.py fig5 runs/NAME --out fig5.png      # or .svg, .pdf
    python plot.py fig12 runs/A runs/B runs/C         # several runs, where a figure takes several
    python plot.py report runs/NAME                   # one self-contained HTML page

    fig1   latent circles of several L in one space     fig9   bounds of L over training
    fig3   spectra and dominant frequencies, any method fig10  trained L, and L in between
    fig5   states and circles while L switches          fig11  Figure 5 for every robot
    fig6   histograms of 1-step and L-step distances    fig12  their errors, mean over seeds
    fig7   PSD from pixels: what it sees, spectra       fig8   PSD with METRA: where z and L lead
    demo   circle and state of each L, side by side     periods measured period against L
    report all of a run's figures
    table1 downstream returns beside the paper's, from results/table1.json

A figure is one function from runs to a matplotlib Figure, registered by `@figure`. A run: a folder
that holds evaluation.json, or the JSON file itself.
"""

import base64
import html
import io
import json
from collections import defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import tyro

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can tell apart, and print in different greys
BLUE, ORANGE, PURPLE, GREEN, GREY = "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#707070"
VERDICT_COLOURS = {"true": GREEN, "close": BLUE, "FALSE": ORANGE}
STYLE = {
    "figure.dpi": 150, "savefig.dpi": 200, "figure.constrained_layout.use": True,
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.spines.top": False,
    "axes.spines.right": False, "axes.linewidth": 0.6, "lines.linewidth": 1.0,
    "legend.frameon": False, "svg.hashsalt": "psd", "svg.fonttype": "none",
}  # fmt: skip
WIDTH = 7.2  # inches, two columns of a page

Run = namedtuple("Run", "path result")  # the folder, and the content of its JSON (None: none)
FIGURES = {}


def figure(function):
    """Registers a figure under its name."""
    FIGURES[function.__name__] = function
    return function


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"plot.py: error: {' '.join(str(message).split())}")


# -------------------------------------------- Reading ---------------------------------------------
def read_run(path, needs_json=True):
    """A folder that holds evaluation.json, or a JSON file of evaluate.py."""
    path = Path(path)
    file = path / "evaluation.json" if path.is_dir() else path
    folder = file.parent
    if not file.is_file():
        if not needs_json and path.is_dir():
            return Run(path, None)
        fail(f"{file} is missing: python evaluate.py {path} writes it")
    try:
        result = json.loads(file.read_text())
        result["skills"], result["summary"], result["switch"]  # noqa: B018
    except (ValueError, KeyError, TypeError) as error:
        fail(f"{file} is damaged, or not of evaluate.py ({type(error).__name__})")
    return Run(folder, result)


def read_scalars(folder, tags):
    """{tag: (steps, values)} of the TensorBoard files in a folder; a tag that isn't there is left
    out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not any(folder.glob("events.out.tfevents.*")):
        fail(f"{folder} has no TensorBoard files, from which this figure is drawn")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    scalars = {}
    for tag in set(tags) & set(events.Tags()["scalars"]):
        points = events.Scalars(tag)
        scalars[tag] = np.array([[p.step, p.value] for p in points]).T
    return scalars


def trained_rows(result, most=6):
    """The trained L, or all that there are; evenly fewer if there are too many to draw."""
    rows = [row for row in result["skills"] if row["trained"]] or result["skills"]
    if len(rows) > most:
        rows = [rows[i] for i in np.round(np.linspace(0, len(rows) - 1, most)).astype(int)]
    return rows


# ----------------------------------------- Parts of figures ---------------------------------------
def method_of(result):
    """What was evaluated, in a few words."""
    args = result["args"]
    if result.get("actions") == "random":
        return "random actions"
    if result["script"] == "diayn" and args["num_skills"] == 1:
        return "SAC on $r_{ext}$"  # one skill: nothing to discriminate
    extras = [("radius_coef", "radius"), ("ext_coef", "$r_{ext}$")]
    terms = [name for key, name in extras if args.get(key)]
    terms += ["independent encoders"] if args.get("mutual_conditioning") is False else []
    names = {"psd_metra": "PSD + METRA", "psd_pixel": "PSD from pixels"}
    return " + ".join([names.get(result["script"], result["script"].upper()), *terms])


def name_of(result):
    return f"{result['env_id']}, {method_of(result)}"


def has_L(result):
    return "L" in result["skills"][0]  # the baselines and the controls have not


def has_z(result):
    return has_L(result) and "z" in result["skills"][0]  # psd_metra.py's: a grid of both


def has_frame(result):
    return bool(result["switch"] and "frame" in result["switch"])  # psd_pixel.py's


def one_direction(run):
    """Of a grid of z and L, the rows of the first z: what figures about L alone can show."""
    if not (run.result and has_z(run.result)):
        return run
    rows = run.result["skills"]
    rows = [row for row in rows if row["z"] == rows[0]["z"]]
    return run._replace(result={**run.result, "skills": rows})


def shade_of(x):
    return plt.get_cmap("viridis")(0.82 * x)  # its lightest colours are lost on paper


def colours(rows, key="L"):
    """{L: colour}, from dark to light with L (or another key)."""
    periods = [row[key] for row in rows]
    low, span = min(periods), max(max(periods) - min(periods), 1)
    return {L: shade_of((L - low) / span) for L in periods}


def step_label(result):
    return "step" if not result["dt"] else f"step (of {result['dt']:g} s)"


def label_of(dimension, separator=" "):
    unit = "" if dimension["unit"] == "1" else f"{separator}[{dimension['unit']}]"
    return dimension["name"] + unit


def period_text(row):
    return "no period" if row["period"] is None else f"period {row['period']:.1f}"


def verdict_colour(row):
    return VERDICT_COLOURS[row["verdict"].split(":")[0]]


def principal_plane(latents):
    """The two directions (d, 2) in which latents (n, d) vary most. The latents are projected
    without being centred, so that the origin, which Eq. (4) makes the centre, stays in view."""
    z = np.atleast_2d(np.asarray(latents, float))
    directions = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)[2][:2].T
    pad = 2 - directions.shape[1]
    return np.pad(directions, ((0, 0), (0, pad)))


def draw_circle(ax, latents, L, colour, plane=None, label=None):
    """A latent trajectory in its plane, over the circle of diameter L that it should follow."""
    z = np.asarray(latents, float)
    xy = z @ (principal_plane(z) if plane is None else plane)
    ax.add_patch(plt.Circle((0, 0), L / 2, fill=False, ec=GREY, lw=0.6, ls=(0, (4, 3)), zorder=1))
    ax.plot(*xy.T, "-", color=colour, lw=0.5, alpha=0.6)
    ax.plot(*xy.T, "o", color=colour, ms=1.6, label=label, rasterized=len(xy) > 2000)
    ax.plot(0, 0, "+", color="black", ms=4, mew=0.6)
    ax.set_aspect("equal")
    return float(np.abs(xy).max())


def square(ax, limit):
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit))


def draw_switch(fig, run):
    """Figure 5 for one run, in a figure or a part of one: states, and the circle of each L."""
    result, switch = run.result, run.result["switch"]
    segments, names = switch["segments"], result["dimensions"][:2]
    shades = colours(segments)
    ratios = [1.0] * len(names) + [2.0]
    grid = fig.add_gridspec(len(ratios), len(segments), height_ratios=ratios)
    for i, name in enumerate(names):
        ax = fig.add_subplot(grid[i, :])
        states = np.array(switch["states"][i], float)
        for segment in segments:
            t = np.arange(segment["start"], segment["stop"] + 1)
            ax.plot(t, states[t], color=shades[segment["L"]])
            for mark in range(segment["start"], segment["stop"] + 1, 2 * segment["L"]):
                ax.axvline(mark, color=GREY, lw=0.4, ls=":", zorder=0)
            if i == 0:
                middle = (segment["start"] + segment["stop"]) / 2
                text = f"L = {segment['L']}"
                ax.annotate(text, (middle, 1.02), xycoords=("data", "axes fraction"), ha="center")
        ax.set_xlim(0, segments[-1]["stop"])
        ax.set_ylabel(label_of(name, "\n"), fontsize=7)
        if i < len(names) - 1:
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlabel(f"{step_label(result)}; dotted lines are 2L apart")
    axes = [fig.add_subplot(grid[-1, i]) for i in range(len(segments))]
    limit = 0.0
    rows = {row["L"]: row for row in result["skills"]}
    for ax, segment in zip(axes, segments):
        L = segment["L"]
        limit = max(limit, draw_circle(ax, segment["latents"], L, shades[L]), L / 2)
        row = rows.get(L)
        ax.set_title(f"2L = {2 * L}" + (f"\n{period_text(row)}" if row else ""))
        ax.set_xlabel("latent PC 1")
    for ax in axes:
        square(ax, 1.1 * limit)
        ax.sharey(axes[0])
        ax.tick_params(labelleft=ax is axes[0])
    axes[0].set_ylabel("latent PC 2")
    fig.suptitle(name_of(result), fontsize=9)


def panels(runs, height, width=None, **kwargs):
    """A row of axes, one for each run."""
    width = width or min(WIDTH, 3.4 * len(runs))
    fig, axes = plt.subplots(1, len(runs), figsize=(width, height), squeeze=False, **kwargs)
    return fig, axes[0]


# -------------------------------------------- Figures ---------------------------------------------
@figure
def fig1(runs):
    """Figure 1: the circles of several L in one latent space."""
    fig, axes = panels(runs, 3.5)
    for ax, run in zip(axes, runs):
        rows = trained_rows(run.result)
        shades, clouds = colours(rows), [np.array(row["latents"], float) for row in rows]
        plane, kept = principal_plane(np.concatenate(clouds)), 1.0
        for z in clouds:
            seen = (z @ plane).var(axis=0).sum() / max(z.var(axis=0).sum(), 1e-12)
            kept = min(kept, seen)
        one = kept > 0.8  # else the circles lie in different planes, and one view would squash some
        limit = 0.0
        for row, z in list(zip(rows, clouds))[::-1]:
            L, label = row["L"], f"L = {row['L']}, {period_text(row)}"
            limit = max(
                limit, L / 2, draw_circle(ax, z, L, shades[L], plane if one else None, label)
            )
        square(ax, 1.08 * limit)
        where = "one plane" if one else "each in its own plane"
        where += f", {100 * kept:.0f} % of variance" if one and kept < 0.99 else ""
        title = f"{name_of(run.result)}\n({where}; dashed: diameter L)"
        ax.set(xlabel="latent PC 1", ylabel="latent PC 2", title=title)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), markerscale=2, ncols=2)
    return fig


@figure
def fig3(runs):
    """Figure 3: the spectrum of each skill, and its four strongest frequencies as bars."""
    count = min(len(runs), 4)  # columns; more runs go below
    lines, one_env = -(-len(runs) // count), len({run.result["env_id"] for run in runs}) == 1
    size = (min(WIDTH, 3.8 * count) * (1.3 if count > 2 else 1.0), 3.8 * lines)
    fig, axes = plt.subplots(2 * lines, count, figsize=size, squeeze=False)
    right = 0.0  # one axis of frequencies for all: what is fast and slow is seen side by side
    for run in runs:
        rows = run.result["skills"]
        found = [d["frequency"] for row in rows for d in row["dominant"]]
        found += [1 / row["L"] for row in rows if has_L(run.result)]
        right = max(right, min(0.5, 1.25 * max(found, default=0.4)))
    for i in range(lines * count):
        line, column = divmod(i, count)
        top, bottom = axes[2 * line : 2 * line + 2, column]
        if i >= len(runs):
            top.set_axis_off()
            bottom.set_axis_off()
            continue
        result = runs[i].result
        rows, key = result["skills"], "L" if has_L(result) else "skill"
        shades, bars = colours(rows, key), []
        for row in rows:
            amplitude = np.array(row["spectrum"], float)
            frequency = np.linspace(0, 0.5, len(amplitude), endpoint=False)
            top.plot(frequency, amplitude, color=shades[row[key]], lw=0.8)
            bars += [(d["frequency"], d["amplitude"], row[key]) for d in row["dominant"]]
        for f, a, k in sorted(bars, key=lambda bar: -bar[1]):  # short bars in front of tall ones
            bottom.bar(f, a, width=0.01 * right, color=shades[k], edgecolor="white", lw=0.2)
        for row in rows:
            if key == "L" and row["trained"]:
                x = 1 / (2 * row["L"])
                for ax in (top, bottom):
                    ax.axvline(x, color=GREY, lw=0.5, ls=":", zorder=0)
        tallest = max([b[1] for b in bars] + [max(row["spectrum"]) for row in rows])
        for ax in (top, bottom):  # a tenth at least: what hardly moves should look like it
            ax.set(xlim=(0, right), ylim=(0, 1.05 * max(tallest, 0.1)))
        top.tick_params(labelbottom=False)
        having = sum(row["period"] is not None for row in rows)
        distinct = result["summary"]["state_period"]["distinct"]
        name = method_of(result) if one_env else name_of(result)
        text = f"{having} of {len(rows)} have a period"
        top.set_title(f"{name}\n{text}, {distinct} distinct" if having else f"{name}\n{text}")
        bottom.set_xlabel("frequency [1/step]")
        low, high = min(shades), max(shades)
        scale = matplotlib.colors.ListedColormap([shade_of(j / 99) for j in range(100)])
        mappable = plt.cm.ScalarMappable(plt.Normalize(low, max(high, low + 1)), scale)
        bar = fig.colorbar(mappable, ax=[top, bottom], pad=0.02, aspect=40)
        name = "L [steps]" if count > 2 else "period variable L [steps]"
        bar.set_label(name if key == "L" else "skill", labelpad=2)
        bar.ax.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        if column == 0:
            top.set_ylabel("spectrum\n[std of random actions]")
            bottom.set_ylabel("four strongest\n[std of random actions]")
    where = f"{runs[0].result['env_id']}: " if one_env else ""
    dotted = "; dotted: 1/(2L) of the trained L" if any(has_L(r.result) for r in runs) else ""
    fig.suptitle(f"{where}spectrum of each skill{dotted}", fontsize=9)
    return fig


@figure
def fig5(runs):
    """Figure 5: states and latent circles while L switches within an episode."""
    fig = plt.figure(figsize=(WIDTH, 3.9 * len(runs)))
    parts = fig.subfigures(len(runs), 1, squeeze=False)[:, 0]
    for part, run in zip(parts, runs):
        draw_switch(part, run)
    return fig


@figure
def fig6(runs):
    """Figure 6: histograms of the latent distances against their optima."""
    count = max(len(trained_rows(run.result, 4)) for run in runs)
    fig = plt.figure(figsize=(WIDTH, 2.9 * len(runs)))
    parts = fig.subfigures(len(runs), 1, squeeze=False)[:, 0]
    kinds = [("one_step", "1-step", BLUE), ("L_step", "L-step", ORANGE)]
    for part, run in zip(parts, runs):
        rows = trained_rows(run.result, 4)
        axes = part.subplots(2, count + 1, squeeze=False, width_ratios=[1] * count + [1.1])
        for row, column in zip(rows, axes.T):
            for ax, (kind, name, colour) in zip(column, kinds):
                d = row[kind]
                edges = np.linspace(0, 1.5 * d["optimum"], len(d["histogram"]) + 1)
                ax.stairs(d["histogram"], edges, fill=True, color=colour)
                ax.axvline(d["optimum"], color="black", lw=0.8, ls="--")
                error = "no pairs" if d["error"] is None else f"error {100 * d['error']:.1f} %"
                ax.set_title(f"{name}, {error}", fontsize=7)
                ax.set_xlim(0, edges[-1])
            column[0].set_title(f"L = {row['L']}\n" + column[0].get_title(), fontsize=7)
            column[1].set_xlabel("latent distance", fontsize=7)
        for i, (kind, name, colour) in enumerate(kinds):
            axes[i, 0].set_ylabel("transitions")
            ax, x = axes[i, -1], np.arange(len(rows))
            ax.bar(x, [100 * (row[kind]["error"] or 0) for row in rows], color=colour, width=0.6)
            ax.set_xticks(x, [str(row["L"]) for row in rows])
            ax.set_ylabel(f"{name} error [%]", fontsize=7)
        axes[1, -1].set_xlabel("L")
        for ax in axes[:, len(rows) : -1].flat:
            ax.set_axis_off()
        part.suptitle(f"{name_of(run.result)}: dashed, the optimum", fontsize=9)
    return fig


@figure
def fig7(runs):
    """Figure 7: what PSD from pixels sees, the spectrum of each L, and its strongest peaks."""
    fig, axes = plt.subplots(len(runs), 3, figsize=(WIDTH, 2.5 * len(runs)), squeeze=False,
                             width_ratios=[1.0, 1.5, 1.5])  # fmt: skip
    for (left, middle, right), run in zip(axes, runs):
        result, rows = run.result, run.result["skills"]
        image = plt.imread(io.BytesIO(base64.b64decode(result["switch"]["frame"])))
        left.imshow(image, interpolation="nearest")
        left.set_axis_off()
        frames = f"the newest of {result['args']['frame_stack']} frames"
        left.set_title(f"{result['env_id']}\n{method_of(result)}\n{frames}")
        shades, bars = colours(rows), []
        for row in rows:
            frequency = np.linspace(0, 0.5, len(row["spectrum"]), endpoint=False)
            middle.plot(frequency, row["spectrum"], color=shades[row["L"]], lw=0.8)
            bars += [(d["frequency"], d["amplitude"], row["L"]) for d in row["dominant"][:3]]
        furthest = max([bar[0] for bar in bars] + [1 / row["L"] for row in rows])
        limit = min(0.5, 1.25 * furthest)
        for f, a, L in sorted(bars, key=lambda bar: -bar[1]):  # short bars in front of tall ones
            right.bar(f, a, width=0.015 * limit, color=shades[L], edgecolor="white", lw=0.2)
        tallest = max([bar[1] for bar in bars] + [max(row["spectrum"]) for row in rows])
        for ax in (middle, right):
            for row in rows:
                if row["trained"]:
                    ax.axvline(1 / (2 * row["L"]), color=GREY, lw=0.5, ls=":", zorder=0)
            ax.set(xlim=(0, limit), ylim=(0, 1.05 * max(tallest, 0.1)))
            ax.set_xlabel("frequency [1/step]")
        middle.set_ylabel("amplitude\n[std of random actions]")
        middle.set_title("spectrum; dotted: 1/(2L) of the trained L")
        right.set_title("three strongest frequencies of each L")
        scale = matplotlib.colors.ListedColormap([shade_of(j / 99) for j in range(100)])
        low, high = min(shades), max(shades)
        mappable = plt.cm.ScalarMappable(plt.Normalize(low, max(high, low + 1)), scale)
        bar = fig.colorbar(mappable, ax=right, pad=0.02, aspect=30)
        bar.set_label("period variable L [steps]", labelpad=2)
        bar.ax.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    return fig


@figure
def fig8(runs):
    """Figure 8: where the skills (z, L) of PSD with METRA go, and their spectra, coloured by L."""
    fig, axes = plt.subplots(len(runs), 2, figsize=(WIDTH, 3.1 * len(runs)), squeeze=False)
    for (left, right), run in zip(axes, runs):
        result, rows = run.result, run.result["skills"]
        shades, planar = colours(rows), len(rows[0]["path"]) == 1
        for row in rows:
            x, *y = (np.array(c, float) for c in row["path"])  # one path of each (z, L)
            xy = (np.arange(len(x)), x) if planar else (x, y[0])
            left.plot(*xy, color=shades[row["L"]], lw=0.8)
            left.plot(xy[0][-1], xy[1][-1], "o", color=shades[row["L"]], ms=2.5)
            frequency = np.linspace(0, 0.5, len(row["spectrum"]), endpoint=False)
            right.plot(frequency, row["spectrum"], color=shades[row["L"]], lw=0.7)
        if planar:
            left.set(xlabel=step_label(result), ylabel="x [m]")
        else:
            left.set(xlabel="x [m]", ylabel="y [m]")
            left.set_aspect("equal", adjustable="datalim")
        mean, off = (result["summary"]["travel"][key] for key in ("distance", "direction_error"))
        away = "" if mean is None else f"\nmean distance {mean:.1f} m, at most {off:.0f}° off z"
        left.set_title(name_of(result) + away)
        for L, shade in shades.items():
            right.axvline(1 / (2 * L), color=shade, lw=0.6, ls=":", zorder=0)
            found = [row["period"] for row in rows if row["L"] == L and row["period"]]
            count = sum(row["L"] == L for row in rows)
            text = f": period {np.median(found):.1f}" if found else ": no period"
            text += f" ({len(found)} of {count})" if len(found) < count else ""
            right.plot([], [], color=shade, label=f"L = {L}{text}")
        amplitude = np.array([row["spectrum"] for row in rows], float)
        seen = np.flatnonzero((amplitude > 0.05 * amplitude.max()).any(axis=0))
        last = frequency[seen[-1]] if len(seen) else 0.0
        right.set(xlim=(0, min(0.5, 1.25 * max(last, 1 / min(shades)))), ylim=(0, None))
        right.set(xlabel="frequency [1/step]", ylabel="spectrum\n[std of random actions]")
        right.set_title("dotted: 1/(2L); in the legend: median over z")
        right.legend(loc="upper right")
    return fig


@figure
def fig9(runs):
    """Figure 9: L_min and L_max over training, with adaptive sampling."""
    fig, axes = panels(runs, 2.4)
    tags = ["psd/L_min", "psd/L_max", "charts/episodes"]
    for ax, run in zip(axes, runs):
        scalars = read_scalars(run.path, tags)
        if len(scalars) < 3:
            fail(f"{run.path}: its TensorBoard files lack {sorted(set(tags) - set(scalars))[0]}")
        (_, low), (_, high), (_, episodes) = (scalars[tag] for tag in tags)
        n = min(len(low), len(high), len(episodes))
        low, high, episodes = low[:n], high[:n], episodes[:n]
        ax.fill_between(episodes, low, high, step="post", color=GREY, alpha=0.2, lw=0)
        ax.step(episodes, high, where="post", color=ORANGE, label="$L_{max}$")
        ax.step(episodes, low, where="post", color=BLUE, label="$L_{min}$")
        title = name_of(run.result) if run.result else run.path.resolve().name
        ax.set(xlabel="training episodes", ylabel="period variable L [steps]", title=title)
        ax.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        ax.set_ylim(min(low.min() - 1, 4), high.max() + 1)
        ax.legend(loc="upper left")
    return fig


@figure
def fig10(runs):
    """Figure 10: the state under trained L (blue), and under L in between (purple)."""
    count = max(len(run.result["skills"]) for run in runs)
    fig = plt.figure(figsize=(min(WIDTH, 5.0 * len(runs)), 0.42 * count + 0.9))
    for part, run in zip(fig.subfigures(1, len(runs), squeeze=False)[0], runs):
        column = part.subplots(len(run.result["skills"]), 1, squeeze=False)[:, 0]
        result, name = run.result, run.result["dimensions"][0]
        rows, values = result["skills"], [row["states"][0] for row in result["skills"]]
        low, high = min(map(min, values)), max(map(max, values))
        for ax, row, x in zip(column, rows, values):
            colour = BLUE if row["trained"] else PURPLE
            ax.plot(x, color=colour)
            for mark in range(0, len(x), 2 * row["L"]):
                ax.axvline(mark, color=GREY, lw=0.4, ls=":", zorder=0)
            margin = 0.08 * (high - low)
            ax.set(xlim=(0, result["T"]), ylim=(low - margin, high + margin), yticks=[])
            ax.spines["left"].set_visible(False)
            label = ax.set_ylabel(f"L = {row['L']}", rotation=0, ha="right", va="center")
            label.set_color(colour)
            text = f"2L {2 * row['L']}, {period_text(row)}"
            ax.text(1.01, 0.5, text, transform=ax.transAxes, va="center", fontsize=7)
            ax.tick_params(bottom=False, labelbottom=False)
        last = column[-1]
        last.tick_params(bottom=True, labelbottom=True)
        last.set_xlabel(f"{step_label(result)}; dotted lines are 2L apart")
        what = f"{label_of(name)}, from {low:.2g} to {high:.2g}"
        column[0].set_title(f"{name_of(result)}: {what}\nblue: trained L, purple: in between")
    fig.get_layout_engine().set(h_pad=0.0, hspace=0.0)
    return fig


@figure
def fig11(runs):
    """Figure 11: Figure 5 for every robot."""
    return fig5(runs)


@figure
def fig12(runs):
    """Figure 12: relative errors of the latent distances, mean over the seeds of each robot."""
    groups = defaultdict(list)
    for run in runs:
        groups[name_of(run.result)].append(run.result)
    fig, axes = panels(list(groups), 2.5)
    for ax, (name, results) in zip(axes, groups.items()):
        errors = defaultdict(lambda: ([], []))
        for result in results:
            for row in trained_rows(result, most=99):
                errors[row["L"]][0].append(row["one_step"]["error"])
                errors[row["L"]][1].append(row["L_step"]["error"])
        periods = sorted(errors)
        for i, (kind, colour) in enumerate([("1-step", BLUE), ("L-step", ORANGE)]):
            for x, L in enumerate(periods):
                values = [100 * e for e in errors[L][i] if e is not None]
                if values:
                    place = x + 0.4 * (i - 0.5)
                    label = kind if x == 0 else None
                    ax.bar(place, np.mean(values), 0.36, color=colour, alpha=0.85, label=label)
                    ax.plot(
                        [place] * len(values),
                        values,
                        "o",
                        ms=2.5,
                        mfc="white",
                        mec="black",
                        mew=0.6,
                    )
        ax.set_xticks(range(len(periods)), [str(L) for L in periods])
        ax.set_xlim(-0.6, max(len(periods) - 0.4, 2.4))
        seeds = len(results)
        title = f"{name}\nbars: mean over {seeds} seed{'s' * (seeds > 1)}, dots: each"
        ax.set(xlabel="period variable L [steps]", ylabel="relative error [%]", title=title)
        ax.legend(loc="upper left", ncols=2)
        ax.set_ylim(0, 1.2 * ax.get_ylim()[1])
    return fig


@figure
def periods(runs):
    """The judge's verdict at a glance: measured period of the state against L, for several runs."""
    fig, ax = plt.subplots(figsize=(0.62 * WIDTH, 3.4))
    top, longest = 0.0, max(row["L"] for run in runs for row in run.result["skills"])
    line = np.array([0, 1.1 * longest])
    ax.fill_between(line, 1.9 * line, 2.1 * line, color=GREY, alpha=0.2, lw=0, label="2L ± 5 %")
    for factor, name in [(2 / 3, "2L/3"), (2 / 5, "2L/5"), (4, "4L"), (6, "6L")]:
        ax.plot(line, factor * line, color=GREY, lw=0.5, ls=":", zorder=0)
        ax.annotate(name, (longest, factor * longest), color=GREY, annotation_clip=True)
    markers = "os^Dv<>P"
    for i, run in enumerate(runs):
        result, shade = run.result, plt.get_cmap("tab10")(i % 10)
        rows = [(row["L"], row["period"]) for row in result["skills"]]
        good = sum(row["verdict"] == "true" for row in result["skills"])
        label = f"{method_of(result)}, seed {result['args']['seed']}, {result['epoch']} epochs: "
        label += f"{good} of {len(rows)} true"
        found = np.array([(L, period) for L, period in rows if period is not None]).reshape(-1, 2)
        ax.scatter(*found.T, s=16, color=shade, marker=markers[i % 8], label=label, zorder=3)
        lost = [L for L, period in rows if period is None]
        if lost:  # below the axis: no period at all
            at = np.full(len(lost), -0.03 - 0.03 * i)
            kwargs = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            ax.scatter(lost, at, s=12, color=shade, marker="x", lw=0.8, **kwargs)
        top = max(top, 2 * longest, *found[:, 1]) if len(found) else max(top, 2 * longest)
    ax.set(xlim=(0, 1.1 * longest), ylim=(0, 1.1 * top), ylabel="measured period [steps]")
    ax.set_xlabel("period variable L [steps]; crosses below the axis: no period", labelpad=6)
    ax.tick_params(axis="x", pad=4 + 5 * len(runs))
    ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    ax.set_title(", ".join(sorted({run.result["env_id"] for run in runs})))
    ax.legend(loc="upper left")
    return fig


@figure
def demo(runs):
    """The latent circle of three trained L beside the state that goes with it."""
    (run,) = runs if len(runs) == 1 else fail("demo takes one run")
    result, rows = run.result, trained_rows(run.result, most=3)
    shades, names = colours(rows), result["dimensions"][:2]
    fig = plt.figure(figsize=(WIDTH, 1.55 * len(rows) + 0.7))
    ratios = [1.0] + [1.9] * len(names)
    grid = fig.add_gridspec(len(rows), len(ratios), width_ratios=ratios)
    circles, limit, states = [], 0.0, {}
    for i, row in enumerate(rows):
        L, shade = row["L"], shades[row["L"]]
        ax = fig.add_subplot(grid[i, 0])
        limit = max(limit, L / 2, draw_circle(ax, row["latents"], L, shade))
        ax.set_ylabel(f"L = {L}", fontsize=9)
        circles.append(ax)
        for j, name in enumerate(names):
            ax = states[i, j] = fig.add_subplot(grid[i, 1 + j], sharey=states.get((0, j)))
            ax.plot(row["states"][j], color=shade)
            for mark in range(0, result["T"] + 1, 2 * L):
                ax.axvline(mark, color=GREY, lw=0.4, ls=":", zorder=0)
            ax.set(xlim=(0, result["T"]))
            ax.set_ylabel(label_of(name), fontsize=7)
            ax.tick_params(labelbottom=i == len(rows) - 1)
        text = f"2L = {2 * L}, {period_text(row)}: {row['verdict']}"
        states[i, 0].set_title(text, color=verdict_colour(row), loc="left")
    for ax in circles:
        square(ax, 1.1 * limit)
        ax.tick_params(labelbottom=ax is circles[-1])
    circles[0].set_title("latent circle (PCA)")
    circles[-1].set_xlabel("latent PC 1")
    for j in range(len(names)):
        states[len(rows) - 1, j].set_xlabel(f"{step_label(result)}; dotted: every 2L")
    fig.suptitle(name_of(result), fontsize=9)
    return fig


# --------------------------------------------- Report ---------------------------------------------
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }} img {{ max-width: 100% }}
td, th {{ padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd }}
td {{ white-space: nowrap }}
.true {{ color: #00694d }} .close {{ color: #005a8e }} .false {{ color: #b34700 }}
.false td:last-child {{ font-weight: bold }}
figure {{ margin: 2em 0 }} figcaption {{ color: #555 }} video {{ width: 19em; margin: .3em }}
</style></head><body>
{body}
</body></html>
"""


def data_url(content, kind):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def report_table(result):
    """The table of evaluate.py."""
    head = "L, 2L, period, error, r_PSD, 1-step error, L-step error, radius / (L/2), return error"
    head = [*head.split(", "), "speed", "episodes that agree", "verdict"]
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]

    def number(value, form="{:.2f}", scale=1):
        return "" if value is None else form.format(scale * value)

    for row in result["skills"]:
        cells = [f"{row['L']}{'' if row['trained'] else ' *'}", str(2 * row["L"])]
        cells[0] += f", z {' '.join(f'{c:+.2f}' for c in row['z'])}" if has_z(result) else ""
        cells += [number(row["period"], "{:.1f}") or "none"]
        cells += [number(row["period_error"], "{:+.1f} %", 100), number(row["r_psd"])]
        cells += [number(row[kind]["error"], "{:.1f} %", 100) for kind in ("one_step", "L_step")]
        cells += [number(row["radius"]), number(row["return_error"]), number(row["speed"])]
        cells += [f"{row['agree']}/{result['episodes']}", row["verdict"]]
        kind = row["verdict"].split(":")[0].lower()
        lines.append(f'<tr class="{kind}">' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f"<table>{''.join(lines)}</table><p>* never trained; periods in steps</p>"


def report(run):
    """One page with nothing outside it: table, figures, videos, arguments."""
    result = run.result
    s, spread = result["summary"], result["summary"]["state_period"]
    body = [f"<h1>{html.escape(result['run'])}</h1>"]
    where = f"{name_of(result)}, epoch {result['epoch']}, {result['global_step']:,} steps"
    body.append(f"<p>{html.escape(where)}; L from {result['bounds'][0]} to {result['bounds'][1]}.")
    body.append(
        f"Of {s['skills']} values of L, {s['within_5_percent']} have a state period within 5 % of "
        f"2L, {s['within_10_percent']} within 10 %; of the {s['trained']} trained ones, "
        f"{s['trained_within_5_percent']} and {s['trained_within_10_percent']}."
    )
    if spread["distinct"]:
        body.append(
            f"State periods from {spread['min']:.1f} to {spread['max']:.1f} steps, "
            f"{spread['distinct']} of them distinct."
        )
    body += ["</p>", report_table(result)]
    figures = ["demo", "fig1", "fig3", "fig5", "fig6", "fig10", "fig12"]
    bounds = read_scalars(run.path, ["psd/L_min"]) if any(run.path.glob("events.out.*")) else {}
    if "psd/L_min" in bounds and np.ptp(bounds["psd/L_min"][0]) > 0:
        figures.insert(5, "fig9")
    if has_z(result) and result["skills"][0]["path"]:
        figures.insert(0, "fig8")
    if has_frame(result):
        figures.insert(0, "fig7")
    for name in figures:
        whole = name in ("fig3", "fig8", "periods")
        picture, file = FIGURES[name]([run if whole else one_direction(run)]), io.BytesIO()
        picture.savefig(file, format="svg", metadata={"Date": None})
        plt.close(picture)
        url = data_url(file.getvalue(), "image/svg+xml")
        caption = html.escape(FIGURES[name].__doc__.split("\n")[0])
        body.append(f'<figure><img src="{url}" alt="{caption}"><figcaption>{caption}</figcaption>')
        body.append("</figure>")
    videos = [(row, run.path / row["video"]) for row in result["skills"] if row.get("video")]
    videos = [(row, path) for row, path in videos if path.is_file()]
    if videos:
        body.append("<h2>Videos</h2>")
    for row, path in videos:
        url = data_url(path.read_bytes(), "video/mp4")
        label = f"L = {row['L']}: {row['verdict']}"
        body.append(f'<video controls loop muted title="{label}" src="{url}"></video>')
    body.append("<h2>Arguments</h2><table>")
    for key, value in result["args"].items():
        cells = f"<td>{html.escape(key)}</td><td>{html.escape(str(value))}</td>"
        body.append(f"<tr>{cells}</tr>")
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    seed = f"seed {result['seed']}, {result['episodes']} episodes for each L"
    body.append(
        f"</table><p><code>{html.escape(result['command'])}</code> ({seed}; {versions})</p>"
    )
    return PAGE.format(title=html.escape(f"{result['run']}: report"), body="\n".join(body))


# -------------------------------------------- Table 1 ---------------------------------------------
METHODS = {  # as results/table1.json names them: columns of the table
    "diayn": "DIAYN", "dads": "DADS", "csd": "CSD", "metra": "METRA", "psd": "PSD",
    "psd_radius": "PSD, radius bonus", "sac": "SAC, r_ext alone",
}  # fmt: skip
ROWS = {  # by the grid's names of them
    "learned": "ours, PPO", "gentle": "ours, PPO, 10 steps an epoch",
    "fixed": "ours, best single skill", "random": "ours, random skills",
}  # fmt: skip
PAPER_TABLE_1 = {  # mean ± spread over 10 seeds of DIAYN, DADS, CSD, METRA and PSD, as printed
    "HalfCheetahHurdle-v0": "0.6 ± 0.5, 0.9 ± 0.3, 0.8 ± 0.6, 1.9 ± 0.8, 3.8 ± 2.0",
    "Walker2dHurdle-v0": "2.6 ± 0.5, 1.9 ± 0.3, 4.1 ± 1.3, 3.1 ± 0.5, 5.4 ± 1.4",
    "HalfCheetahFriction-v0": "13.2 ± 3.4, 12.4 ± 2.9, 12.5 ± 3.8, 30.1 ± 13.1, 43.4 ± 19.1",
    "Walker2dFriction-v0": "4.6 ± 1.2, 1.6 ± 0.1, 5.3 ± 0.3, 5.2 ± 1.6, 8.7 ± 1.7",
}


def table1(path):
    """Table 1 in Markdown: the paper's numbers, and ours where there are any."""
    try:
        cells = json.loads(Path(path).read_text())["cells"]
        found = {(c["task"], c["policy"], c["method"]): c for c in cells}
        for task, policy, method in found:
            PAPER_TABLE_1[task], ROWS[policy], METHODS[method]  # noqa: B018
        episodes = sorted({c["episodes"] for c in cells if c["policy"] in ("learned", "gentle")})
        epochs = sorted({c["skill_epochs"] for c in cells})
        seeds = sorted({c["skill_seed"] for c in cells})
        texts = {key: cell_text(c) for key, c in found.items()}
    except FileNotFoundError:
        fail(f"{path} is missing: python benchmark/grid.py table1 --table --out {path} writes it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is damaged, or not of benchmark/grid.py table1 ({type(error).__name__})")
    lines = [["task", "", *METHODS.values()], ["---"] * (2 + len(METHODS))]
    for task, numbers in PAPER_TABLE_1.items():
        paper = numbers.split(", ")
        lines.append([task[:-3], "paper", *paper, *[""] * (len(METHODS) - len(paper))])
        for policy, name in ROWS.items():
            lines.append(["", name, *(texts.get((task, policy, m), "") for m in METHODS)])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    if episodes:
        counts = " or ".join(f"{n:,}" for n in episodes)
        text += f"\n\nPPO: {counts} episodes (paper: 100,000)."
    if epochs:
        text += f"\nSkills: {' or '.join(f'{n:,}' for n in epochs)} epochs, trained with seed "
        text += f"{' or '.join(map(str, seeds))}: one set a method, for all seeds of PPO."
    return text + "\nIn brackets: 95 % interval of the mean over PPO's seeds, and their number.\n"


def cell_text(cell):
    """The mean, its interval over seeds (one seed has none), and their number."""
    interval = cell["interval"] and f"{cell['interval'][0]:.1f} to {cell['interval'][1]:.1f}; "
    return f"{cell['mean']:.1f} ({interval or ''}{len(cell['seeds'])})"


# ---------------------------------------------- Main ----------------------------------------------
FigureName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")]
RunPaths = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass
class Args:
    figure: FigureName  # fig1, fig3, ..., demo, report or table1
    runs: RunPaths = ()  # run folders, or JSON files of evaluate.py; for table1 its own JSON
    out: str | None = None  # .png, .svg, .pdf or .html (None: beside the first run's JSON)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    names = [*FIGURES, "report", "table1"]
    if args.figure not in names:
        fail(f"there is no {args.figure!r}: choose one of {', '.join(names)}")
    if args.figure == "table1":
        text = table1(args.runs[0] if args.runs else "results/table1.json")
        print(text, end="")
        if args.out:
            Path(args.out).write_text(text)
        return
    if not args.runs:
        fail(f"{args.figure} of which run? Give a run folder")
    runs = [read_run(path, needs_json=args.figure != "fig9") for path in args.runs]
    for path, run in zip(args.runs, runs):
        if args.figure not in ("fig3", "fig9") and not has_L(run.result):
            fail(f"{args.figure} is about L, and {path} has skills without: fig3 takes it")
        if args.figure == "fig8" and not (has_z(run.result) and run.result["skills"][0]["path"]):
            fail(f"fig8 is about z and L of psd_metra.py, which {path} has not, or no position")
        if args.figure == "fig7" and not has_frame(run.result):
            fail(f"fig7 is about psd_pixel.py, of which {path} is not")
    if args.figure not in ("fig3", "fig8", "periods", "report"):
        runs = [one_direction(run) for run in runs]
    page = args.figure == "report"
    suffix = ".html" if page else ".png"
    out = Path(args.out) if args.out else runs[0].path / f"{args.figure}{suffix}"
    allowed = (".html",) if page else (".png", ".svg", ".pdf")
    if out.suffix not in allowed:
        fail(f"{out.name} should end in {' or '.join(allowed)}")
    if not out.parent.is_dir():
        fail(f"{out.parent} is missing: there is nowhere to write {out.name}")
    with plt.rc_context(STYLE):
        if page:
            if len(runs) > 1:
                fail("report takes one run")
            out.write_text(report(runs[0]))
        else:
            metadata = {"Date": None} if out.suffix == ".svg" else None  # same data, same bytes
            FIGURES[args.figure](runs).savefig(out, metadata=metadata)
    plt.close("all")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
