"""The paper's figures, from the JSON of evaluate.py alone (Figure 9: from TensorBoard files, and
`curves`: from CSV files of benchmark/progress.py).

    python plot.py fig5 runs/NAME --out fig5.png      # or .svg, .pdf
    python plot.py fig12 runs/A runs/B runs/C         # several runs, where a figure takes several
    python plot.py report runs/NAME                   # one self-contained HTML page

    fig1   latent circles of several L in one space     fig9   bounds of L over training
    fig3   spectra and dominant frequencies, any method fig10  trained L, and L in between
    fig5   states and circles while L switches          fig11  Figure 5 for every robot
    fig6   histograms of 1-step and L-step distances    fig12  their errors, mean over seeds
    fig7   PSD from pixels: what it sees, spectra       fig8   PSD with METRA: where z and L lead
    demo   circle and state of each L, side by side     periods measured period against L
    report all figures of one run                       curves learning curves, seeds as spread

A figure is one function from runs to a matplotlib Figure, registered by `@figure`. A run is a
folder that holds evaluation.json, or the JSON file itself. Table 1 is made by benchmark/grid.py.
"""

import base64
import csv
import html
import io
import json
import math
import os
from collections import defaultdict, namedtuple
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import tyro

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402

# Okabe and Ito's colours: colour-blind readers can tell them apart, and so can a grey printer
BLUE = "#0072B2"
ORANGE = "#D55E00"
PURPLE = "#CC79A7"
GREEN = "#009E73"
GREY = "#707070"
VERDICT_COLOURS = {"true": GREEN, "close": BLUE, "FALSE": ORANGE}
STYLE = {
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "svg.hashsalt": "psd",
    "svg.fonttype": "none",
}
WIDTH = 7.2  # inches, two columns of a page

Run = namedtuple("Run", "path result")  # the folder, and the content of its JSON (or None)
FIGURES = {}


def figure(function):
    """Registers a figure under the name of its function."""
    FIGURES[function.__name__] = function
    return function


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"plot.py: error: {' '.join(str(message).split())}")


# -------------------------------------- Reading ---------------------------------------
def evaluation_file(path):
    """The JSON of a run: evaluation.json of a folder, or the file itself."""
    path = Path(path)
    if path.is_dir():
        return path / "evaluation.json"
    return path


def read_run(path, needs_json=True):
    """Reads and checks the JSON of a run. Without `needs_json` a folder may do without one."""
    file = evaluation_file(path)
    if not file.is_file():
        if Path(path).is_dir() and not needs_json:
            return Run(Path(path), None)
        fail(f"{file} is missing: python evaluate.py {path} writes it")
    try:
        text = file.read_text()
        result = json.loads(text, parse_float=finite_number, parse_constant=finite_number)
        check_result(result)
    except OSError as error:
        fail(f"{file} cannot be read ({error.strerror}): give a file that can be")
    except (ValueError, RecursionError) as error:
        advice = f"python evaluate.py {file.parent} writes it anew"
        fail(f"{file} is damaged, or not of evaluate.py ({error}): {advice}")
    return Run(file.parent, result)


def finite_number(text):
    """The number that stands in a JSON. Python would also take NaN, Infinity and 1e999."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def read_scalars(folder, tags):
    """{tag: (steps, values)} of the TensorBoard files in a folder. A tag may be missing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not has_scalars(folder):
        fail(f"{folder} has no TensorBoard files, from which this figure is drawn")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    scalars = {}
    for tag in events.Tags()["scalars"]:
        if tag in tags:
            points = [(point.step, point.value) for point in events.Scalars(tag)]
            scalars[tag] = np.array(points).T
    return scalars


def has_scalars(folder):
    return any(folder.glob("events.out.tfevents.*"))


def read_progress(path):
    """The columns of a CSV file of benchmark/progress.py; an empty cell is nan."""
    file = Path(path) / "progress.csv" if Path(path).is_dir() else Path(path)
    try:
        with open(file, newline="") as lines:
            rows = list(csv.DictReader(lines))
        columns = {}
        for name in rows[0]:
            columns[name] = np.array([float(row[name] or "nan") for row in rows])
        if not np.all(np.diff(columns["gradient_steps"]) > 0):
            raise ValueError("gradient steps do not grow")
    except OSError as error:
        advice = f"python benchmark/progress.py RUN --out {file} writes it"
        fail(f"{file} cannot be read ({error.strerror}): {advice}")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        fail(f"{file} is damaged, or not of benchmark/progress.py ({type(error).__name__})")
    return Run(file, columns)


# --------------------------------------- Checks ---------------------------------------
NUMBER = (int, float)
NUMBER_OR_NULL = (int, float, type(None))
RESULT_FIELDS = {
    "command": str,
    "seed": int,
    "episodes": int,
    "versions": dict,
    "run": str,
    "script": str,
    "env_id": str,
    "epoch": int,
    "global_step": int,
    "args": dict,
    "T": int,
    "dt": NUMBER_OR_NULL,
    "dimensions": list,
    "skills": list,
    "switch": (dict, type(None)),
    "summary": dict,
}
SKILL_FIELDS = {"period": NUMBER_OR_NULL, "spectrum": list, "dominant": list, "states": list}
SKILL_FIELDS_WITH_L = {  # what psd.py and its relatives have, and the baselines do not
    "L": int,
    "trained": bool,
    "verdict": str,
    "period_error": NUMBER_OR_NULL,
    "r_psd": NUMBER_OR_NULL,
    "radius": NUMBER_OR_NULL,
    "return_error": NUMBER_OR_NULL,
    "speed": NUMBER_OR_NULL,
    "agree": int,
    "one_step": dict,
    "L_step": dict,
    "latents": list,
}
DISTANCE_FIELDS = {"optimum": NUMBER, "error": NUMBER_OR_NULL, "histogram": list}
SEGMENT_FIELDS = {"L": int, "start": int, "stop": int, "latents": list}
SUMMARY_FIELDS_WITH_L = {
    "skills": int,
    "within_5_percent": int,
    "within_10_percent": int,
    "trained": int,
    "trained_within_5_percent": int,
    "trained_within_10_percent": int,
}


def check_result(result):
    """Raises ValueError if a figure could not be drawn from this content of a JSON."""
    check_fields(result, RESULT_FIELDS, "the file")
    if not result["skills"]:
        raise ValueError("'skills' is empty: no skill was evaluated")
    if result["T"] < 1:
        raise ValueError(f"'T' is {result['T']}, and an episode has at least one step")
    if not result["dimensions"]:
        raise ValueError("'dimensions' is empty: no state dimension was stored")
    for dimension in result["dimensions"]:
        check_fields(dimension, {"name": str, "unit": str}, "a dimension")
    check_fields(result["summary"], {"state_period": dict}, "the summary")
    spread = result["summary"]["state_period"]
    check_fields(spread, {"distinct": int}, "'state_period' of the summary")
    if spread["distinct"]:
        check_fields(spread, {"min": NUMBER, "max": NUMBER}, "'state_period' of the summary")
    check_fields(result["skills"][0], {}, "the first skill")
    for row in result["skills"]:
        check_skill(row, result)
    if has_L(result):
        check_equal_sizes([row["latents"][0] for row in result["skills"]], "'latents'")
        check_fields(result, {"bounds": list, "switch": dict}, "the file")
        check_numbers(result["bounds"], 1, "'bounds'")
        if len(result["bounds"]) < 2:
            raise ValueError("'bounds' has no two numbers, L_min and L_max")
        check_fields(result["summary"], SUMMARY_FIELDS_WITH_L, "the summary")
        check_switch(result)
    if has_z(result):
        check_fields(result["summary"], {"travel": dict}, "the summary")
        travel_fields = {"distance": NUMBER_OR_NULL, "direction_error": NUMBER_OR_NULL}
        check_fields(result["summary"]["travel"], travel_fields, "the travel")
    if has_path(result):
        check_equal_sizes([row["path"] for row in result["skills"]], "'path'")


def check_skill(row, result):
    """Raises ValueError if an entry of `skills` lacks anything, or has another form."""
    name = "a skill"
    if has_L(result):
        check_fields(row, SKILL_FIELDS_WITH_L, name)
        check_L(row["L"])
        name = f"the skill of L = {row['L']}"
        check_numbers(row["latents"], 2, f"'latents' of {name}")
        check_distance(row["one_step"], f"'one_step' of {name}")
        check_distance(row["L_step"], f"'L_step' of {name}")
        if verdict_kind(row) not in VERDICT_COLOURS:
            known = ", ".join(VERDICT_COLOURS)
            raise ValueError(f"{name} has the unknown verdict {row['verdict']!r}, not {known}")
    else:
        check_fields(row, {"skill": int}, name)
    check_fields(row, SKILL_FIELDS, name)
    check_numbers(row["spectrum"], 1, f"'spectrum' of {name}")
    check_numbers(row["states"], 2, f"'states' of {name}")
    if len(row["states"]) < len(result["dimensions"]):
        raise ValueError(f"'states' of {name} has fewer rows than there are dimensions")
    for peak in row["dominant"]:
        check_fields(peak, {"frequency": NUMBER, "amplitude": NUMBER}, f"a peak of {name}")
    if has_z(result):
        check_fields(row, {"z": list}, name)
        check_numbers(row["z"], 1, f"'z' of {name}")
    if row.get("path") is not None:
        check_numbers(row["path"], 2, f"'path' of {name}")
    video = row.get("video", "")
    if not isinstance(video, str) or "\0" in video:
        raise ValueError(f"'video' of {name} is no file name")


def check_switch(result):
    """Raises ValueError if the rollout that switches L has another form."""
    switch = result["switch"]
    check_fields(switch, {"states": list, "segments": list}, "'switch'")
    check_numbers(switch["states"], 2, "'states' of 'switch'")
    if len(switch["states"]) < len(result["dimensions"]):
        raise ValueError("'states' of 'switch' has fewer rows than there are dimensions")
    if not switch["segments"]:
        raise ValueError("'segments' of 'switch' is empty")
    num_states = len(switch["states"][0])
    for segment in switch["segments"]:
        check_fields(segment, SEGMENT_FIELDS, "a segment")
        check_L(segment["L"])
        check_numbers(segment["latents"], 2, "'latents' of a segment")
        if not 0 <= segment["start"] < segment["stop"] < num_states:
            raise ValueError("a segment of 'switch' lies outside its states")


def check_distance(distance, where):
    check_fields(distance, DISTANCE_FIELDS, where)
    check_numbers(distance["histogram"], 1, f"the histogram in {where}")


def check_L(L):
    if L < 1:
        raise ValueError(f"an L is {L}, and the smallest is 1")


def check_equal_sizes(lists, where):
    """Raises ValueError unless all lists are equally long."""
    if len({len(one_list) for one_list in lists}) > 1:
        raise ValueError(f"{where} have different dimensions")


def check_fields(holder, fields, where):
    """Raises ValueError unless `holder` is a JSON object with these fields of these types."""
    if not isinstance(holder, dict):
        raise ValueError(f"{where} is not a JSON object")
    for name, kind in fields.items():
        if name not in holder:
            raise ValueError(f"{where} has no {name!r}")
        if not isinstance(holder[name], kind):
            raise ValueError(f"{name!r} of {where} is a {type(holder[name]).__name__}")


def check_numbers(values, num_axes, where):
    """Raises ValueError unless `values` are numbers, nested `num_axes` deep, one at least."""
    try:
        array = np.array(values)
    except ValueError:
        raise ValueError(f"{where} has rows of different length") from None
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{where} is empty, or not nested as it should be")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{where} has something other than numbers")


# ----------------------------------- Parts of figures ---------------------------------
def trained_rows(result, most=6):
    """The trained L, or all L if none was. If there are more than `most`, evenly fewer."""
    rows = [row for row in result["skills"] if row["trained"]]
    if not rows:
        rows = result["skills"]
    if len(rows) > most:
        chosen = np.round(np.linspace(0, len(rows) - 1, most)).astype(int)
        rows = [rows[i] for i in chosen]
    return rows


def method_of(result):
    """What was evaluated, in a few words."""
    args = result["args"]
    script = result["script"]
    if result.get("actions") == "random":
        return "random actions"
    if script == "diayn" and args.get("num_skills") == 1:
        return "SAC on $r_{ext}$"  # one skill: nothing to discriminate
    names = {"psd_metra": "PSD + METRA", "psd_pixel": "PSD from pixels"}
    terms = [names.get(script, plain(script.upper()))]
    if args.get("psd_coef") == 0:
        terms = ["PSD's $\\phi_L$"]  # the encoder is the paper's, the reward is not
    if args.get("turn_coef"):
        terms.append("turn")
    if args.get("regularity_coef"):
        terms.append("regularity")
    if args.get("radius_coef"):  # an earlier term of ours, in older files
        terms.append("radius")
    if args.get("ext_coef"):
        terms.append("$r_{ext}$")
    if args.get("mutual_conditioning") is False:
        terms.append("independent encoders")
    return " + ".join(terms)


def name_of(result):
    return f"{plain(result['env_id'])}, {method_of(result)}"


def plain(text):
    """Text of a JSON as a figure can show it, without formulas between dollar signs."""
    drawable = text.encode("utf-8", "replace").decode()  # JSON may have half a character
    return drawable.replace("$", r"\$")


def has_L(result):
    return "L" in result["skills"][0]  # skills of the baselines and controls have no L


def has_z(result):
    return has_L(result) and "z" in result["skills"][0]  # psd_metra.py: a grid of z and L


def has_path(result):
    return has_z(result) and all(row.get("path") for row in result["skills"])


def has_frame(result):
    return bool(result["switch"] and "frame" in result["switch"])  # psd_pixel.py


def one_direction(run):
    """Of a grid of z and L, the rows of the first z: what figures about L alone can show."""
    if not (run.result and has_z(run.result)):
        return run
    first_z = run.result["skills"][0]["z"]
    rows = [row for row in run.result["skills"] if row["z"] == first_z]
    return run._replace(result={**run.result, "skills": rows})


def shade_of(x):
    """A colour for x from 0 to 1. The lightest colours of the map would be lost on paper."""
    return plt.get_cmap("viridis")(0.82 * x)


def colours(rows, key="L"):
    """{L: colour}, from dark to light with L (or with another key)."""
    values = [row[key] for row in rows]
    low = min(values)
    span = max(max(values) - low, 1)
    return {value: shade_of((value - low) / span) for value in values}


def step_label(result):
    if not result["dt"]:
        return "step"
    return f"step (of {result['dt']:g} s)"


def label_of(dimension, separator=" "):
    """The name of a state dimension, with its unit where it has one."""
    name = plain(dimension["name"])
    if dimension["unit"] == "1":
        return name
    return f"{name}{separator}[{plain(dimension['unit'])}]"


def period_text(row):
    if row["period"] is None:
        return "no period"
    return f"period {row['period']:.1f}"


def verdict_kind(row):
    return row["verdict"].split(":")[0]  # "FALSE: too fast" is a kind of FALSE


def principal_plane(latents):
    """The two directions (d, 2) in which latents (n, d) vary most.

    The latents are projected without being centred: the origin, which Eq. (4) makes the centre,
    stays in view."""
    latents = np.atleast_2d(np.asarray(latents, float))
    centred = latents - latents.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = directions[:2].T
    missing = 2 - plane.shape[1]  # latents of one dimension have only one direction
    return np.pad(plane, ((0, 0), (0, missing)))


def draw_circle(ax, latents, L, colour, plane=None, label=None):
    """A latent trajectory in its plane, over the circle of diameter L that it should follow.

    Returns how far from the origin the drawing reaches."""
    latents = np.asarray(latents, float)
    if plane is None:
        plane = principal_plane(latents)
    x, y = (latents @ plane).T
    dashes = (0, (4, 3))
    ideal = plt.Circle((0, 0), L / 2, fill=False, ec=GREY, lw=0.6, ls=dashes, zorder=1)
    ax.add_patch(ideal)
    ax.plot(x, y, "-", color=colour, lw=0.5, alpha=0.6)
    ax.plot(x, y, "o", color=colour, ms=1.6, label=label, rasterized=len(x) > 2000)
    ax.plot(0, 0, "+", color="black", ms=4, mew=0.6)
    ax.set_aspect("equal")
    return max(L / 2, float(np.abs(x).max()), float(np.abs(y).max()))


def square(ax, limit):
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit))


def mark_every_2L(ax, start, stop, L):
    for mark in range(start, stop, 2 * L):
        ax.axvline(mark, color=GREY, lw=0.4, ls=":", zorder=0)


def whole_numbers(axis):
    axis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))


def panels(num_panels, height):
    """A figure with a row of axes."""
    size = (min(WIDTH, 3.4 * num_panels), height)
    fig, axes = plt.subplots(1, num_panels, figsize=size, squeeze=False)
    return fig, axes[0]


def stacked_parts(runs, height):
    """A figure with one part per run, one below the other."""
    fig = plt.figure(figsize=(WIDTH, height * len(runs)))
    parts = fig.subfigures(len(runs), 1, squeeze=False)
    return fig, parts[:, 0]


# ---------------------------- The spectra of Figures 3 and 7 --------------------------
def skill_key(result):
    """What the skills of a run are numbered by."""
    return "L" if has_L(result) else "skill"


def plot_spectrum(ax, row, colour, width=0.8):
    amplitude = np.array(row["spectrum"], float)
    frequency = np.linspace(0, 0.5, len(amplitude), endpoint=False)
    ax.plot(frequency, amplitude, color=colour, lw=width)


def frequency_limit(result, num_peaks):
    """Where the axis of frequencies ends: beyond the strongest peaks, and beyond 1/L."""
    found = []
    for row in result["skills"]:
        found += [peak["frequency"] for peak in row["dominant"][:num_peaks]]
        if has_L(result):
            found.append(1 / row["L"])
    furthest = max(found, default=0.4)
    return min(0.5, 1.25 * furthest)


def draw_spectra(spectrum_ax, bar_ax, result, num_peaks, limit, bar_width):
    """The spectrum of each skill, and its strongest frequencies as bars; dotted: 1/(2L).

    Returns the colour of each skill."""
    key = skill_key(result)
    shades = colours(result["skills"], key)
    bars = []
    tallest = 0.1  # at least: what hardly moves should look like it
    for row in result["skills"]:
        shade = shades[row[key]]
        plot_spectrum(spectrum_ax, row, shade)
        tallest = max(tallest, max(row["spectrum"]))
        for peak in row["dominant"][:num_peaks]:
            bars.append((peak["amplitude"], peak["frequency"], shade))
            tallest = max(tallest, peak["amplitude"])
    bars.sort(key=lambda bar: bar[0], reverse=True)  # short bars in front of tall ones
    for amplitude, frequency, shade in bars:
        bar_ax.bar(frequency, amplitude, width=bar_width, color=shade, edgecolor="white", lw=0.2)
    for ax in (spectrum_ax, bar_ax):
        for row in result["skills"]:
            if row.get("trained"):
                ax.axvline(1 / (2 * row["L"]), color=GREY, lw=0.5, ls=":", zorder=0)
        ax.set(xlim=(0, limit), ylim=(0, 1.05 * tallest))
    bar_ax.set_xlabel("frequency [1/step]")
    return shades


def add_colour_bar(fig, axes, shades, label, aspect):
    """Which colour stands for which L or skill."""
    low = min(shades)
    high = max(max(shades), low + 1)
    scale = matplotlib.colors.ListedColormap([shade_of(i / 99) for i in range(100)])
    mappable = plt.cm.ScalarMappable(plt.Normalize(low, high), scale)
    bar = fig.colorbar(mappable, ax=axes, pad=0.02, aspect=aspect)
    bar.set_label(label, labelpad=2)
    whole_numbers(bar.ax.yaxis)


# -------------------------------------- Figures ---------------------------------------
@figure
def fig1(runs):
    """Figure 1: the circles of several L in one latent space."""
    fig, axes = panels(len(runs), 3.5)
    for ax, run in zip(axes, runs):
        rows = trained_rows(run.result)
        shades = colours(rows)
        plane = principal_plane(np.concatenate([row["latents"] for row in rows]))
        kept = min(variance_kept(row["latents"], plane) for row in rows)
        # Circles that lie in different planes are drawn each in its own: one view would squash some
        in_one_plane = kept > 0.8
        limit = 0.0
        for row in reversed(rows):
            L = row["L"]
            label = f"L = {L}, {period_text(row)}"
            view = plane if in_one_plane else None
            reach = draw_circle(ax, row["latents"], L, shades[L], view, label)
            limit = max(limit, reach)
        square(ax, 1.08 * limit)
        if not in_one_plane:
            where = "each in its own plane"
        elif kept < 0.99:
            where = f"one plane, {100 * kept:.0f} % of variance"
        else:
            where = "one plane"
        ax.set_title(f"{name_of(run.result)}\n({where}; dashed: diameter L)")
        ax.set(xlabel="latent PC 1", ylabel="latent PC 2")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), markerscale=2, ncols=2)
    return fig


def variance_kept(latents, plane):
    """The share of the variance of latents (n, d) that is seen in a plane (d, 2)."""
    latents = np.array(latents, float)
    total = latents.var(axis=0).sum()
    seen = (latents @ plane).var(axis=0).sum()
    return min(1.0, seen / max(total, 1e-12))


@figure
def fig3(runs):
    """Figure 3: the spectrum of each skill, and its four strongest frequencies, by method."""
    fig, axes = plt.subplots(
        len(runs), 2, figsize=(WIDTH, 1.25 * len(runs) + 0.6), squeeze=False, sharex=True
    )
    by_L = []  # axes whose colours stand for L, and those whose colours stand for a skill
    by_skill = []
    for (left, right), run in zip(axes, runs):
        result = run.result
        shades = draw_in_hertz(left, right, result)
        together = [one.result for one in runs if one.result["env_id"] == result["env_id"]]
        tallest = max(highest_amplitude(one) for one in together)  # one scale per robot
        for ax in (left, right):
            ax.set(xscale="log", ylim=(0, 1.05 * max(tallest, 0.1)))
        left.set_ylabel(method_of(result).replace(" + ", "\n+ "), fontsize=7)
        left.set_title(count_of_periods(result), loc="left", fontsize=7, pad=2)
        group = by_L if has_L(result) else by_skill
        group.append((shades, left, right))
    robots = ", ".join(sorted({plain(run.result["env_id"]) for run in runs}))
    axes[0, 1].set_title("four strongest frequencies", loc="left", fontsize=7, pad=2)
    for ax in axes[-1]:
        ax.set_xlabel("frequency [Hz]")
    for group, label in [(by_L, "period variable L [steps]"), (by_skill, "skill")]:
        if group:
            shades, _, _ = max(group, key=lambda entry: len(entry[0]))
            rows = [ax for _, left, right in group for ax in (left, right)]
            add_colour_bar(fig, rows, shades, label, aspect=15 * len(group))
    title = f"{robots}: spectrum of each skill [std of random actions]"
    if by_L:
        title += "; dotted: 1/(2L) of the trained L"
    fig.suptitle(title, fontsize=9)
    return fig


def in_hertz(row, result):
    """Frequencies and amplitudes of a spectrum, from two cycles per episode on: below is drift."""
    amplitude = np.array(row["spectrum"], float)
    frequency = np.linspace(0, 0.5, len(amplitude), endpoint=False)
    shown = frequency >= 2 / result["T"]
    return frequency[shown] / (result["dt"] or 1.0), amplitude[shown]


def highest_amplitude(result):
    return max(in_hertz(row, result)[1].max() for row in result["skills"])


def draw_in_hertz(left, right, result):
    """Spectra on the left, their four strongest frequencies on the right; the colour of each."""
    per_second = 1 / (result["dt"] or 1.0)
    key = skill_key(result)
    shades = colours(result["skills"], key)
    for row in result["skills"]:
        shade = shades[row[key]]
        left.plot(*in_hertz(row, result), color=shade, lw=0.8)
        for peak in row["dominant"][:4]:
            if peak["frequency"] >= 2 / result["T"]:
                right.vlines(peak["frequency"] * per_second, 0, peak["amplitude"], color=shade)
        if row.get("trained"):
            for ax in (left, right):
                ax.axvline(per_second / (2 * row["L"]), color=GREY, lw=0.4, ls=":", zorder=0)
    return shades


def count_of_periods(result):
    """How many skills have a period, and how many of these periods differ."""
    rows = result["skills"]
    count = sum(row["period"] is not None for row in rows)
    text = f"{count} of {len(rows)} have a period"
    if count:
        text += f", {result['summary']['state_period']['distinct']} distinct"
    return text


@figure
def fig5(runs):
    """Figure 5: states and latent circles while L switches within an episode."""
    fig, parts = stacked_parts(runs, 3.9)
    for part, run in zip(parts, runs):
        draw_switch(part, run.result)
    return fig


def draw_switch(part, result):
    """Figure 5 for one run: two state dimensions above, the circle of each L below."""
    segments = result["switch"]["segments"]
    dimensions = result["dimensions"][:2]
    shades = colours(segments)
    heights = [1.0] * len(dimensions) + [2.0]
    grid = part.add_gridspec(len(heights), len(segments), height_ratios=heights)
    for i, dimension in enumerate(dimensions):
        ax = part.add_subplot(grid[i, :])
        draw_switching_state(ax, result["switch"]["states"][i], segments, shades)
        ax.set_ylabel(label_of(dimension, "\n"), fontsize=7)
        if i == 0:
            for segment in segments:
                middle = (segment["start"] + segment["stop"]) / 2
                place = {"xy": (middle, 1.02), "xycoords": ("data", "axes fraction")}
                ax.annotate(f"L = {segment['L']}", **place, ha="center")
        if i == len(dimensions) - 1:
            ax.set_xlabel(f"{step_label(result)}; dotted lines are 2L apart")
        else:
            ax.tick_params(labelbottom=False)
    rows = {row["L"]: row for row in result["skills"]}
    axes = []
    limit = 0.0
    for i, segment in enumerate(segments):
        L = segment["L"]
        ax = part.add_subplot(grid[-1, i])
        reach = draw_circle(ax, segment["latents"], L, shades[L])
        limit = max(limit, reach)
        title = f"2L = {2 * L}"
        if L in rows:
            title += f"\n{period_text(rows[L])}"
        ax.set_title(title)
        ax.set_xlabel("latent PC 1")
        axes.append(ax)
    for ax in axes:
        square(ax, 1.1 * limit)
        ax.sharey(axes[0])
        ax.tick_params(labelleft=ax is axes[0])
    axes[0].set_ylabel("latent PC 2")
    part.suptitle(name_of(result), fontsize=9)


def draw_switching_state(ax, values, segments, shades):
    """One state dimension over time, in the colour of the L that is on."""
    values = np.array(values, float)
    for segment in segments:
        end = segment["stop"] + 1
        t = np.arange(segment["start"], end)
        ax.plot(t, values[t], color=shades[segment["L"]])
        mark_every_2L(ax, segment["start"], end, segment["L"])
    ax.set_xlim(0, segments[-1]["stop"])


KINDS_OF_DISTANCE = [("one_step", "1-step", BLUE), ("L_step", "L-step", ORANGE)]


@figure
def fig6(runs):
    """Figure 6: histograms of the latent distances against their optima."""
    num_columns = max(len(trained_rows(run.result, 4)) for run in runs)
    widths = [1.0] * num_columns + [1.1]
    fig, parts = stacked_parts(runs, 2.9)
    for part, run in zip(parts, runs):
        rows = trained_rows(run.result, 4)
        axes = part.subplots(2, num_columns + 1, squeeze=False, width_ratios=widths)
        for line, (kind, name, colour) in zip(axes, KINDS_OF_DISTANCE):
            for ax, row in zip(line, rows):
                draw_histogram(ax, row[kind], name, colour)
            line[0].set_ylabel("transitions")
            draw_errors(line[-1], [row[kind]["error"] for row in rows], colour)
            line[-1].set_xticks(range(len(rows)), [str(row["L"]) for row in rows])
            line[-1].set_ylabel(f"{name} error [%]", fontsize=7)
        for top, bottom, row in zip(axes[0], axes[1], rows):
            top.set_title(f"L = {row['L']}\n{top.get_title()}", fontsize=7)
            bottom.set_xlabel("latent distance", fontsize=7)
        axes[1, -1].set_xlabel("L")
        unused = axes[:, len(rows) : -1]
        for ax in unused.flat:
            ax.set_axis_off()
        part.suptitle(f"{name_of(run.result)}: dashed, the optimum", fontsize=9)
    return fig


def draw_histogram(ax, distance, name, colour):
    edges = np.linspace(0, 1.5 * distance["optimum"], len(distance["histogram"]) + 1)
    ax.stairs(distance["histogram"], edges, fill=True, color=colour)
    ax.axvline(distance["optimum"], color="black", lw=0.8, ls="--")
    ax.set_xlim(0, edges[-1])
    if distance["error"] is None:
        ax.set_title(f"{name}, no pairs", fontsize=7)
    else:
        ax.set_title(f"{name}, error {100 * distance['error']:.1f} %", fontsize=7)


def draw_errors(ax, errors, colour):
    percent = [100 * (error or 0) for error in errors]
    ax.bar(range(len(errors)), percent, color=colour, width=0.6)


@figure
def fig7(runs):
    """Figure 7: what PSD from pixels sees, the spectrum of each L, and its strongest peaks."""
    size = (WIDTH, 2.5 * len(runs))
    widths = [1.0, 1.5, 1.5]
    fig, axes = plt.subplots(len(runs), 3, figsize=size, squeeze=False, width_ratios=widths)
    for (left, middle, right), run in zip(axes, runs):
        result = run.result
        left.imshow(seen_frame(run), interpolation="nearest")
        left.set_axis_off()
        frames = f"the newest of {result['args'].get('frame_stack')} frames"
        left.set_title(f"{plain(result['env_id'])}\n{method_of(result)}\n{frames}")
        limit = frequency_limit(result, num_peaks=3)
        shades = draw_spectra(middle, right, result, 3, limit, bar_width=0.015 * limit)
        middle.set_xlabel("frequency [1/step]")
        middle.set_ylabel("amplitude\n[std of random actions]")
        middle.set_title("spectrum; dotted: 1/(2L) of the trained L")
        right.set_title("three strongest frequencies of each L")
        add_colour_bar(fig, right, shades, "period variable L [steps]", aspect=30)
    return fig


def seen_frame(run):
    """The picture that the agent sees, of psd_pixel.py's runs."""
    try:
        content = base64.b64decode(run.result["switch"]["frame"])
        return plt.imread(io.BytesIO(content))
    except (TypeError, ValueError, OSError, SyntaxError):  # the last is Pillow's, of a broken PNG
        fail(f"the frame in the JSON of {run.path} is no PNG: evaluate.py writes it anew")


@figure
def fig8(runs):
    """Figure 8: where the skills (z, L) of PSD with METRA go, and their spectra, coloured by L."""
    size = (WIDTH, 3.1 * len(runs))
    fig, axes = plt.subplots(len(runs), 2, figsize=size, squeeze=False)
    for (left, right), run in zip(axes, runs):
        draw_paths(left, run.result)
        draw_spectra_by_L(right, run.result)
    return fig


def draw_paths(ax, result):
    """One path per (z, L): seen from above, or x over time for a robot that moves in a plane."""
    shades = colours(result["skills"])
    planar = len(result["skills"][0]["path"]) == 1
    for row in result["skills"]:
        if planar:
            y = row["path"][0]
            x = range(len(y))
        else:
            x = row["path"][0]
            y = row["path"][1]
        ax.plot(x, y, color=shades[row["L"]], lw=0.8)
        ax.plot(x[-1], y[-1], "o", color=shades[row["L"]], ms=2.5)
    if planar:
        ax.set(xlabel=step_label(result), ylabel="x [m]")
    else:
        ax.set(xlabel="x [m]", ylabel="y [m]")
        ax.set_aspect("equal", adjustable="datalim")
    title = name_of(result)
    travel = result["summary"]["travel"]
    if travel["distance"] is not None:
        title += f"\nmean distance {travel['distance']:.1f} m"
    if travel["direction_error"] is not None:
        title += f", at most {travel['direction_error']:.0f}° off z"
    ax.set_title(title)


def draw_spectra_by_L(ax, result):
    """The spectra of all (z, L), with the median period of each L in the legend."""
    rows = result["skills"]
    shades = colours(rows)
    for row in rows:
        plot_spectrum(ax, row, shades[row["L"]], width=0.7)
    for L, shade in shades.items():
        ax.axvline(1 / (2 * L), color=shade, lw=0.6, ls=":", zorder=0)
        periods_of_L = [row["period"] for row in rows if row["L"] == L]
        found = [period for period in periods_of_L if period]
        label = f"L = {L}: no period"
        if found:
            label = f"L = {L}: period {np.median(found):.1f}"
        if len(found) < len(periods_of_L):
            label += f" ({len(found)} of {len(periods_of_L)})"
        ax.plot([], [], color=shade, label=label)
    # The axis ends beyond 1/L, and beyond all amplitudes above a twentieth of the highest
    highest = max(max(row["spectrum"]) for row in rows)
    last = 1 / min(shades)
    for row in rows:
        (high,) = np.nonzero(np.array(row["spectrum"]) > 0.05 * highest)
        if len(high):
            last = max(last, 0.5 * high[-1] / len(row["spectrum"]))
    ax.set_xlim(0, min(0.5, 1.25 * last))
    ax.set_ylim(0, None)
    ax.set(xlabel="frequency [1/step]", ylabel="spectrum\n[std of random actions]")
    ax.set_title("dotted: 1/(2L); in the legend: median over z")
    ax.legend(loc="upper right")


def read_bounds(run):
    """L_min, L_max and the number of episodes, from TensorBoard files or from progress.csv."""
    table = run.path / "progress.csv"
    if not has_scalars(run.path) and run.result and table.is_file():
        columns = np.genfromtxt(table, delimiter=",", names=True)
        episodes = columns["epoch"] * run.result["args"]["episodes_per_epoch"]
        return columns["L_min"], columns["L_max"], episodes
    tags = ["psd/L_min", "psd/L_max", "charts/episodes"]
    scalars = read_scalars(run.path, tags)
    for tag in sorted(tags):
        if tag not in scalars:
            fail(f"{run.path}: its TensorBoard files lack {tag}")
    length = min(scalars[tag].shape[1] for tag in tags)  # a run may be writing them
    return [scalars[tag][1, :length] for tag in tags]


@figure
def fig9(runs):
    """Figure 9: L_min and L_max over training, with adaptive sampling."""
    fig, axes = panels(len(runs), 2.4)
    for ax, run in zip(axes, runs):
        low, high, episodes = read_bounds(run)
        ax.fill_between(episodes, low, high, step="post", color=GREY, alpha=0.2, lw=0)
        ax.step(episodes, high, where="post", color=ORANGE, label="$L_{max}$")
        ax.step(episodes, low, where="post", color=BLUE, label="$L_{min}$")
        title = name_of(run.result) if run.result else plain(run.path.resolve().name)
        ax.set(xlabel="training episodes", ylabel="period variable L [steps]", title=title)
        whole_numbers(ax.yaxis)
        ax.set_ylim(min(low.min() - 1, 4), high.max() + 1)
        ax.legend(loc="upper left")
    return fig


@figure
def fig10(runs):
    """Figure 10: the state under trained L (blue), and under L in between (purple)."""
    most = max(len(run.result["skills"]) for run in runs)
    fig = plt.figure(figsize=(min(WIDTH, 5.0 * len(runs)), 0.42 * most + 0.9))
    parts = fig.subfigures(1, len(runs), squeeze=False)[0]
    for part, run in zip(parts, runs):
        draw_state_of_each_L(part, run.result)
    fig.get_layout_engine().set(h_pad=0.0, hspace=0.0)
    return fig


def draw_state_of_each_L(part, result):
    """Figure 10 for one run: one line per L, all on one scale."""
    rows = result["skills"]
    axes = part.subplots(len(rows), 1, squeeze=False)[:, 0]
    low = min(min(row["states"][0]) for row in rows)
    high = max(max(row["states"][0]) for row in rows)
    margin = 0.08 * (high - low)
    for ax, row in zip(axes, rows):
        values = row["states"][0]
        colour = BLUE if row["trained"] else PURPLE
        ax.plot(values, color=colour)
        mark_every_2L(ax, 0, len(values), row["L"])
        ax.set(xlim=(0, result["T"]), ylim=(low - margin, high + margin), yticks=[])
        ax.spines["left"].set_visible(False)
        label = ax.set_ylabel(f"L = {row['L']}", rotation=0, ha="right", va="center")
        label.set_color(colour)
        text = f"2L {2 * row['L']}, {period_text(row)}"
        ax.text(1.01, 0.5, text, transform=ax.transAxes, va="center", fontsize=7)
        is_last = ax is axes[-1]
        ax.tick_params(bottom=is_last, labelbottom=is_last)
    axes[-1].set_xlabel(f"{step_label(result)}; dotted lines are 2L apart")
    what = f"{label_of(result['dimensions'][0])}, from {low:.2g} to {high:.2g}"
    axes[0].set_title(f"{name_of(result)}: {what}\nblue: trained L, purple: in between")


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
    fig, axes = panels(len(groups), 2.5)
    for ax, (name, results) in zip(axes, groups.items()):
        rows_of_L = defaultdict(list)  # {L: one row per seed}
        for result in results:
            for row in trained_rows(result, most=99):
                rows_of_L[row["L"]].append(row)
        values_of_L = sorted(rows_of_L)
        for shift, (kind, label, colour) in zip([-0.2, 0.2], KINDS_OF_DISTANCE):
            for i, L in enumerate(values_of_L):
                errors = [row[kind]["error"] for row in rows_of_L[L]]
                draw_mean_and_seeds(ax, i + shift, errors, colour, label if i == 0 else None)
        ax.set_xticks(range(len(values_of_L)), [str(L) for L in values_of_L])
        ax.set_xlim(-0.6, max(len(values_of_L) - 0.4, 2.4))
        seeds = "1 seed" if len(results) == 1 else f"{len(results)} seeds"
        ax.set_title(f"{name}\nbars: mean over {seeds}, dots: each")
        ax.set(xlabel="period variable L [steps]", ylabel="relative error [%]")
        ax.legend(loc="upper left", ncols=2)
        ax.set_ylim(0, 1.2 * ax.get_ylim()[1])
    return fig


def draw_mean_and_seeds(ax, x, errors, colour, label):
    """A bar for the mean over seeds, and a dot per seed. An unknown error is left out."""
    percent = [100 * error for error in errors if error is not None]
    if not percent:
        return
    ax.bar(x, np.mean(percent), 0.36, color=colour, alpha=0.85, label=label)
    ax.plot([x] * len(percent), percent, "o", ms=2.5, mfc="white", mec="black", mew=0.6)


@figure
def periods(runs):
    """The judge's verdict at a glance: measured period of the state against L, for several runs."""
    fig, ax = plt.subplots(figsize=(0.62 * WIDTH, 3.2 + 0.2 * len(runs)))
    longest = max(row["L"] for run in runs for row in run.result["skills"])
    line = np.array([0, 1.1 * longest])
    ax.fill_between(line, 1.9 * line, 2.1 * line, color=GREY, alpha=0.2, lw=0, label="2L ± 5 %")
    for factor, name in [(2 / 3, "2L/3"), (2 / 5, "2L/5"), (4, "4L"), (6, "6L")]:
        ax.plot(line, factor * line, color=GREY, lw=0.5, ls=":", zorder=0)
        ax.annotate(name, (longest, factor * longest), color=GREY, annotation_clip=True)
    top = 2 * longest
    for i, run in enumerate(runs):
        draw_periods(ax, run.result, i)
        found = [row["period"] for row in run.result["skills"] if row["period"] is not None]
        top = max([top, *found])
    ax.set(xlim=(0, 1.1 * longest), ylim=(0, 1.1 * top), ylabel="measured period [steps]")
    note = "×: no period"
    if any(not row["trained"] for run in runs for row in run.result["skills"]):
        note += "; hollow: not trained"
    ax.set_xlabel(f"period variable L [steps]; {note}", labelpad=6)
    ax.tick_params(axis="x", pad=4 + 5 * len(runs))
    whole_numbers(ax.xaxis)
    ax.set_title(", ".join(sorted({plain(run.result["env_id"]) for run in runs})))
    fig.legend(loc="outside lower center")
    return fig


def draw_periods(ax, result, number):
    """A marker per skill of run `number`, hollow if its L was never trained; a cross below the axis
    for a skill without a period."""
    rows = result["skills"]
    shade = plt.get_cmap("tab10")(number % 10)
    marker = "os^Dv<>P"[number % 8]
    found = [row for row in rows if row["period"] is not None]
    lost = [row for row in rows if row["period"] is None]
    num_true = sum(row["verdict"] == "true" for row in rows)
    label = f"{method_of(result)}, seed {result['args'].get('seed')}, {result['epoch']} epochs: "
    label += f"{num_true} of {len(rows)} true"
    trained = [row for row in found if row["trained"]]
    between = [row for row in found if not row["trained"]]
    for chosen, fill, text in [(trained, shade, label), (between, "white", None)]:
        x = [row["L"] for row in chosen]
        y = [row["period"] for row in chosen]
        edge = {"edgecolors": [shade], "linewidths": 0.8, "marker": marker, "zorder": 3}
        ax.scatter(x, y, s=16, facecolors=[fill], label=text, **edge)
    if lost:
        x = [row["L"] for row in lost]
        y = np.full(len(lost), -0.03 - 0.03 * number)  # in heights of the axes
        place = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.scatter(x, y, s=12, color=shade, marker="x", lw=0.8, **place)


CURVES = {  # column of progress.csv -> label
    "true": "true skills",
    "turn": "turn",
    "regularity": "regularity",
    "r_psd": "$r_{PSD}$",
    "speed": "speed [m/s]",
    "episode_length": "episode length [steps]",
}


@figure
def curves(runs, labels=()):
    """Learning curves: the mean over the seeds of each label, and the range from worst to best."""
    groups = defaultdict(list)  # {label: columns of one run each}
    for i, run in enumerate(runs):
        groups[labels[i] if labels else ""].append(run.result)
    names = [name for name in CURVES if any(name in run.result for run in runs)]
    if not names:
        fail(f"{runs[0].path} has none of the columns {', '.join(CURVES)}")
    fig, axes = plt.subplots(
        -(-len(names) // 3), min(len(names), 3), figsize=(WIDTH, 1.9 * -(-len(names) // 3)),
        squeeze=False,
    )  # fmt: skip
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    for ax, name in zip(axes.flat, names):
        for (label, columns), colour in zip(groups.items(), [BLUE, ORANGE, GREEN, PURPLE] * 9):
            seeds = [one for one in columns if name in one]
            if seeds:
                text = f"{label}, " if label else ""
                text += "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
                draw_curve(ax, seeds, name, colour, text)
        ax.set(xlabel="gradient steps / 1,000", ylabel=CURVES[name], ylim=(0, None))
    axes.flat[0].legend(loc="best")
    return fig


def draw_curve(ax, seeds, name, colour, label):
    """A thin line per seed, their mean, and the range between them as far as all were trained."""
    known = []
    for columns in seeds:
        is_known = ~np.isnan(columns[name])
        known.append((columns["gradient_steps"][is_known] / 1000, columns[name][is_known]))
    known = [(x, y) for x, y in known if len(x) > 0]
    if not known:
        return
    few = max(len(x) for x, _ in known) < 10  # as for true skills, of which each was judged
    for x, y in known:
        ax.plot(x, y, color=colour, lw=0.4, alpha=0.6, marker="o" if few else None, ms=2.5)
    start = max(x[0] for x, _ in known)
    stop = min(x[-1] for x, _ in known)
    grid = np.linspace(start, stop, 200)
    together = np.array([np.interp(grid, x, y) for x, y in known])
    ax.plot(grid, together.mean(axis=0), color=colour, lw=1.4, label=label)
    ax.fill_between(grid, together.min(axis=0), together.max(axis=0), color=colour, alpha=0.2, lw=0)


@figure
def demo(runs):
    """The latent circle of three trained L beside the state that goes with it."""
    result = runs[0].result
    rows = trained_rows(result, most=3)
    shades = colours(rows)
    dimensions = result["dimensions"][:2]
    fig = plt.figure(figsize=(WIDTH, 1.55 * len(rows) + 0.7))
    widths = [1.0] + [1.9] * len(dimensions)
    grid = fig.add_gridspec(len(rows), len(widths), width_ratios=widths)
    circles = []
    state_axes = {}
    limit = 0.0
    for i, row in enumerate(rows):
        L = row["L"]
        is_last = i == len(rows) - 1
        ax = fig.add_subplot(grid[i, 0])
        reach = draw_circle(ax, row["latents"], L, shades[L])
        limit = max(limit, reach)
        ax.set_ylabel(f"L = {L}", fontsize=9)
        ax.tick_params(labelbottom=is_last)
        circles.append(ax)
        for j, dimension in enumerate(dimensions):
            ax = fig.add_subplot(grid[i, 1 + j], sharey=state_axes.get((0, j)))
            ax.plot(row["states"][j], color=shades[L])
            mark_every_2L(ax, 0, result["T"] + 1, L)
            ax.set_xlim(0, result["T"])
            ax.set_ylabel(label_of(dimension), fontsize=7)
            ax.tick_params(labelbottom=is_last)
            if is_last:
                ax.set_xlabel(f"{step_label(result)}; dotted: every 2L")
            state_axes[i, j] = ax
        text = f"2L = {2 * L}, {period_text(row)}: {plain(row['verdict'])}"
        state_axes[i, 0].set_title(text, color=VERDICT_COLOURS[verdict_kind(row)], loc="left")
    for ax in circles:
        square(ax, 1.1 * limit)
    circles[0].set_title("latent circle (PCA)")
    circles[-1].set_xlabel("latent PC 1")
    fig.suptitle(name_of(result), fontsize=9)
    return fig


# --------------------------------------- Report ---------------------------------------
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
TABLE_HEAD = [
    "L",
    "2L",
    "period",
    "error",
    "r_PSD",
    "1-step error",
    "L-step error",
    "radius / (L/2)",
    "return error",
    "speed",
    "episodes that agree",
    "verdict",
]


def report(run):
    """One page with nothing outside it: summary, table, figures, videos, arguments.

    All text of the JSON passes through `escaped`: a page from a stranger's JSON runs nothing."""
    result = run.result
    parts = [
        f"<h1>{escaped(result['run'])}</h1>",
        report_summary(result),
        report_table(result),
        report_figures(run),
        report_videos(run),
        report_arguments(result),
    ]
    title = escaped(f"{result['run']}: report")
    return PAGE.format(title=title, body="\n".join(parts))


def escaped(value):
    return html.escape(str(value))


def data_url(content, kind):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def report_summary(result):
    """A paragraph: what was evaluated, and how many periods are right."""
    summary = result["summary"]
    spread = summary["state_period"]
    low, high = result["bounds"][:2]
    text = f"{name_of(result)}, epoch {result['epoch']}, {result['global_step']:,} steps; "
    text += f"L from {low} to {high}.\n"
    text += f"Of {summary['skills']} values of L, {summary['within_5_percent']} have a state "
    text += f"period within 5 % of 2L, {summary['within_10_percent']} within 10 %; "
    text += f"of the {summary['trained']} trained ones, {summary['trained_within_5_percent']} "
    text += f"and {summary['trained_within_10_percent']}."
    if spread["distinct"]:
        text += f"\nState periods from {spread['min']:.1f} to {spread['max']:.1f} steps, "
        text += f"{spread['distinct']} of them distinct."
    return f"<p>{escaped(text)}</p>"


def report_table(result):
    """The table of evaluate.py, a line per skill."""
    heads = "".join(f"<th>{escaped(name)}</th>" for name in TABLE_HEAD)
    lines = [f"<tr>{heads}</tr>"]
    for row in result["skills"]:
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in table_cells(row, result))
        lines.append(f'<tr class="{escaped(verdict_kind(row).lower())}">{cells}</tr>')
    return f"<table>{''.join(lines)}</table><p>* never trained; periods in steps</p>"


def table_cells(row, result):
    """The texts of one line of the table, in the order of TABLE_HEAD."""
    name = str(row["L"])
    if not row["trained"]:
        name += " *"
    if has_z(result):
        name += ", z " + " ".join(f"{number:+.2f}" for number in row["z"])
    return [
        name,
        2 * row["L"],
        number_text(row["period"], "{:.1f}", unknown="none"),
        number_text(row["period_error"], "{:+.1%}"),
        number_text(row["r_psd"], "{:.2f}"),
        number_text(row["one_step"]["error"], "{:.1%}"),
        number_text(row["L_step"]["error"], "{:.1%}"),
        number_text(row["radius"], "{:.2f}"),
        number_text(row["return_error"], "{:.2f}"),
        number_text(row["speed"], "{:.2f}"),
        f"{row['agree']}/{result['episodes']}",
        row["verdict"],
    ]


def number_text(value, form, unknown=""):
    if value is None:
        return unknown
    return form.format(value).replace("%", " %")


def report_figures(run):
    """All figures that can be drawn of this run, as pictures inside the page."""
    parts = []
    for name in figures_of(run):
        one_run = run if name in OF_EVERY_Z else one_direction(run)
        picture = FIGURES[name]([one_run])
        file = io.BytesIO()
        picture.savefig(file, format="svg", metadata={"Date": None})
        plt.close(picture)
        url = data_url(file.getvalue(), "image/svg+xml")
        caption = escaped(FIGURES[name].__doc__.split("\n")[0])
        image = f'<img src="{url}" alt="{caption}">'
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption>\n</figure>")
    return "\n".join(parts)


def figures_of(run):
    """The names of the figures for which this run has the data."""
    names = ["demo", "fig1", "fig3", "fig5", "fig6"]
    if has_frame(run.result):
        names.insert(0, "fig7")
    if has_path(run.result):
        names.insert(0, "fig8")
    if has_scalars(run.path):
        scalars = read_scalars(run.path, ["psd/L_min"])
        if "psd/L_min" in scalars and np.ptp(scalars["psd/L_min"][0]) > 0:
            names.append("fig9")
    return names + ["fig10", "fig12"]


def report_videos(run):
    """The videos of the run folder, inside the page. Files from elsewhere are not let in."""
    folder = run.path.resolve()
    parts = []
    for row in run.result["skills"]:
        if not row.get("video"):
            continue
        label = escaped(f"L = {row['L']}: {row['verdict']}")
        path = (folder / row["video"]).resolve()
        if not path.is_relative_to(folder):
            parts.append(f"<p>{label}: no video, since its file lies outside the run folder.</p>")
            continue
        try:
            content = path.read_bytes()
        except OSError:
            continue  # the file was never made, or removed since
        url = data_url(content, "video/mp4")
        parts.append(f'<video controls loop muted title="{label}" src="{url}"></video>')
    if parts:
        parts.insert(0, "<h2>Videos</h2>")
    return "\n".join(parts)


def report_arguments(result):
    """All arguments of the run, and the command that evaluated it."""
    lines = ["<h2>Arguments</h2><table>"]
    for name, value in result["args"].items():
        lines.append(f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>")
    lines.append("</table>")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    origin = f"seed {result['seed']}, {result['episodes']} episodes for each L; {versions}"
    lines.append(f"<p><code>{escaped(result['command'])}</code> ({escaped(origin)})</p>")
    return "\n".join(lines)


# ---------------------------------------- Main ----------------------------------------
WITHOUT_L = ["fig3", "fig9"]  # figures that skills without L have, too
OF_EVERY_Z = ["fig3", "fig8", "periods", "curves", "report"]  # others: the first z of psd_metra.py
OF_ONE_RUN = ["demo", "report"]
FigureName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")]
RunPaths = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass
class Args:
    figure: FigureName  # fig1, fig3, ..., demo or report
    runs: RunPaths = ()  # run folders, or JSON files of evaluate.py
    out: str | None = None  # .png, .svg, .pdf or .html (None: beside the first run's JSON)
    labels: tuple[str, ...] = ()  # of curves, one per run; runs with the same label are seeds


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_request(args)
    if args.figure == "curves":
        runs = [read_progress(path) for path in args.runs]
    else:
        runs = [read_run(path, needs_json=args.figure != "fig9") for path in args.runs]
        for path, run in zip(args.runs, runs):
            check_data(args.figure, path, run.result)
    out = output_file(args)
    if args.figure not in OF_EVERY_Z:
        runs = [one_direction(run) for run in runs]
    with plt.rc_context(STYLE):
        if args.figure == "report":
            page = report(runs[0]).encode("utf-8", "xmlcharrefreplace")
            write = partial(Path.write_bytes, data=page)
        else:
            metadata = {"Date": None} if out.suffix == ".svg" else None  # same data, same bytes
            options = {"labels": args.labels} if args.figure == "curves" else {}
            write = partial(FIGURES[args.figure](runs, **options).savefig, metadata=metadata)
        try:
            write_whole(out, write)
        except OSError as error:
            advice = "free some space, or give another --out; an old file stays as it was"
            fail(f"{out} cannot be written ({error.strerror or error}): {advice}")
        finally:
            plt.close("all")
    print(f"wrote {out}")


def check_request(args):
    """Refuses a command line that asks for what does not exist."""
    if args.figure == "table1":
        command = "python benchmark/grid.py table1 --table --read results/table1.json"
        fail(f"table1 is not a figure, and has moved: {command} prints it")
    names = [*FIGURES, "report"]
    if args.figure not in names:
        fail(f"there is no {args.figure!r}: choose one of {', '.join(names)}")
    if not args.runs:
        fail(f"{args.figure} of which run? Give a run folder")
    if args.figure in OF_ONE_RUN and len(args.runs) > 1:
        fail(f"{args.figure} takes one run, and {len(args.runs)} are given: name one of them")
    if args.out and Path(args.out).is_dir():
        fail(f"--out {args.out} is a folder: give a file in it")
    if args.labels and args.figure != "curves":
        fail(f"--labels are for curves, not for {args.figure}: leave them out")
    if args.labels and len(args.labels) != len(args.runs):
        fail(f"{len(args.labels)} labels for {len(args.runs)} runs: give one per run")


def output_file(args):
    """The file to write, checked before anything is drawn."""
    suffixes = [".html"] if args.figure == "report" else [".png", ".svg", ".pdf"]
    out = evaluation_file(args.runs[0]).parent / f"{args.figure}{suffixes[0]}"
    if args.out:
        out = Path(args.out)
    if out.is_dir():
        fail(f"{out} is a folder, and stands where the figure goes: give an --out")
    if out.suffix not in suffixes:
        fail(f"{out.name} should end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        fail(f"{out.parent} is missing: there is nowhere to write {out.name}")
    return out


def check_data(figure_name, path, result):
    """Refuses a run that lacks what a figure is about."""
    if figure_name not in WITHOUT_L and not has_L(result):
        fail(f"{figure_name} is about L, and {path} has skills without: fig3 takes it")
    if figure_name == "fig8" and not has_path(result):
        fail(f"fig8 is about z and L of psd_metra.py, which {path} has not, or no position")
    if figure_name == "fig7" and not has_frame(result):
        fail(f"fig7 is about psd_pixel.py, of which {path} is not")


def write_whole(path, write):
    """Writes all of a file or nothing: write(temporary), then a rename. An old file stays as it
    was until the new one is complete; a disk that is full costs neither."""
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        write(path)  # a device such as /dev/null, which a rename would replace
        return
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
