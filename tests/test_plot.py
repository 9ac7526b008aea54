"""Every figure draws from the committed sample: not empty, labelled, and without torch."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import plot  # noqa: E402

SAMPLE = ROOT / "tests" / "sample" / "evaluation.json"
LABELS = {  # what a reader looks for on each figure
    "fig1": ["latent PC 1", "latent PC 2", "Pendulum-v1, PSD", "L = 18, period"],
    "fig3": ["frequency [Hz]", "four strongest", "period variable L [steps]"],
    "fig5": ["step (of 0.05 s)", "latent PC 1", "L = 6", "2L = 36", "sin of angle"],
    "fig6": ["latent distance", "transitions", "1-step error [%]", "L-step error [%]", "L = 14"],
    "fig9": ["training episodes", "period variable L [steps]", "$L_{min}$", "$L_{max}$"],
    "fig10": ["step (of 0.05 s)", "L = 7", "2L 14, period", "blue: trained L", "sin of angle"],
    "fig11": ["step (of 0.05 s)", "latent PC 1", "2L = 36"],
    "fig12": ["relative error [%]", "period variable L [steps]", "1-step", "mean over 1 seed,"],
    "periods": [
        "measured period [steps]",
        "2L ± 5 %",
        "2L/3",
        "PSD, seed 2, 130 epochs: 3 of 13 true",
    ],
    "demo": ["latent circle (PCA)", "2L = 28, period 27", "true", "FALSE: too slow", "every 2L"],
}


@pytest.fixture
def run(tmp_path):
    """A run folder: the sample, and TensorBoard files as psd.py writes them."""
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(SAMPLE, folder / "evaluation.json")
    writer = SummaryWriter(folder)
    for epoch in range(20):
        writer.add_scalar("psd/L_min", 10 - epoch // 5, epoch * 1600)
        writer.add_scalar("psd/L_max", 10 + epoch // 4, epoch * 1600)
        writer.add_scalar("charts/episodes", 8 * (epoch + 1), epoch * 1600)
    writer.close()
    return folder


def texts(figure):
    return "\n".join(t.get_text() for t in figure.findobj(plt.Text))


def coloured(pixels):
    """Pixels that are neither black, white nor grey, as frames, marks and letters are."""
    return (pixels.max(axis=-1) - pixels.min(axis=-1) > 0.15).sum()


def test_every_figure_is_tested():
    # Of pixels, of z and L: test_psd_pixel.py, test_psd_metra.py; curves: at the end
    elsewhere = {"fig7", "fig8", "curves"}
    assert {*LABELS, *elsewhere} == set(plot.FIGURES)


@pytest.mark.parametrize("name", LABELS)
def test_figures_show_data_and_labels(name, run, tmp_path):
    with plt.rc_context(plot.STYLE):
        figure = plot.FIGURES[name]([plot.read_run(run)])
        figure.savefig(tmp_path / "figure.png", dpi=100)
        figure.set_dpi(100)
        pixels = plt.imread(tmp_path / "figure.png")[..., :3]
        for axes in figure.findobj(plt.Axes):
            if not axes.axison:
                continue
            box = axes.get_window_extent()
            top, bottom = len(pixels) - int(box.y1), len(pixels) - int(box.y0)
            inside = pixels[max(top, 0) : bottom, int(box.x0) : int(box.x1)]
            assert coloured(inside) > 10, f"an empty panel: {axes.get_title()!r}"
        shown = texts(figure)
        plt.close(figure)
    for label in LABELS[name]:
        assert label in shown


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_command_line(name, suffix, run, tmp_path, capsys):
    out = tmp_path / f"{name}.{suffix}"
    count = 1 if name == "demo" else 2
    plot.main([name, *[str(run)] * count, "--out", str(out)])
    assert str(out) in capsys.readouterr().out
    start = out.read_bytes()[:500]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in start
    assert plt.get_fignums() == []  # none left open


def test_by_default_beside_the_json_and_the_same_twice(run):
    plot.main(["fig5", str(run / "evaluation.json")])
    first = (run / "fig5.png").read_bytes()
    plot.main(["fig5", str(run)])
    assert (run / "fig5.png").read_bytes() == first


def test_fig9_can_be_drawn_from_a_table_without_tensorboard(run):
    for events in run.glob("events*"):
        events.unlink()
    (run / "progress.csv").write_text("epoch,L_min,L_max\n1,10,10\n2,9,10\n3,8,12\n")
    per_epoch = json.loads((run / "evaluation.json").read_text())["args"]["episodes_per_epoch"]
    with plt.rc_context(plot.STYLE):
        high, low = plot.fig9([plot.read_run(run)]).axes[0].lines
    assert high.get_ydata().tolist() == [10, 10, 12] and low.get_ydata().tolist() == [10, 9, 8]
    assert high.get_xdata().tolist() == [per_epoch, 2 * per_epoch, 3 * per_epoch]


def test_figures_show_the_numbers_of_the_json(run):
    """Bars, bounds and circles are where the data says."""
    result = json.loads(SAMPLE.read_text())
    trained = [row for row in result["skills"] if row["trained"]]
    record = plot.read_run(run)
    with plt.rc_context(plot.STYLE):
        bars = [bar.get_height() for bar in plot.fig12([record]).axes[0].patches]
        errors = [row[kind]["error"] for kind in ("one_step", "L_step") for row in trained]
        assert bars == pytest.approx([100 * e for e in errors])
        lines = plot.fig9([record]).axes[0].lines
        assert lines[0].get_ydata().max() == 14 and lines[1].get_ydata().min() == 7
        assert lines[0].get_xdata()[-1] == 160
        axes = plot.fig1([record]).axes[0]
        circles = sorted(c.get_radius() for c in axes.patches)
        assert circles == [row["L"] / 2 for row in trained]
        for line in axes.lines:
            if line.get_marker() == "o":
                radius = np.hypot(*line.get_data()).mean()
                assert min(abs(radius / c - 1) for c in circles) < 0.15
        seeds = plot.fig12([record, record._replace(result={**result, "env_id": "Other"})])
        assert len(seeds.axes) == 2 and "1 seed," in texts(seeds)
        assert "2 seeds" in texts(plot.fig12([record, record]))
    plt.close("all")


def test_principal_plane_keeps_the_circle_and_its_centre():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    angle = 2 * np.pi * np.arange(40) / 20
    circle = 5 * np.stack([np.cos(angle), np.sin(angle)], 1) @ basis.T
    assert np.allclose(np.hypot(*(circle @ plot.principal_plane(circle)).T), 5)
    moved = circle + 3 * basis[:, 0]  # off the origin, and to be seen so
    assert np.hypot(*(moved @ plot.principal_plane(moved)).mean(axis=0)) == pytest.approx(3)
    assert plot.principal_plane([[1.0], [2.0]]).shape == (1, 2)
    axes = plt.figure().add_subplot()
    plot.draw_circle(axes, moved, 10, plot.BLUE)
    drawn = np.array(axes.lines[0].get_data())
    assert np.hypot(*drawn.mean(axis=1)) == pytest.approx(3)
    plt.close()


class Resources(HTMLParser):
    def __init__(self):
        super().__init__()
        self.urls, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.urls += [v for k, v in attributes if k in ("src", "href", "poster", "srcset", "data")]


def test_report_is_one_self_contained_page(run):
    (run / "videos").mkdir()
    (run / "videos" / "L006.mp4").write_bytes(b"not really a video")
    result = json.loads(SAMPLE.read_text())
    result["skills"][0]["video"] = "videos/L006.mp4"
    result["skills"][1]["video"] = "videos/lost.mp4"
    result["args"]["run_name"] = "<b>&</b>"
    (run / "evaluation.json").write_text(json.dumps(result))
    plot.main(["report", str(run)])
    page = (run / "report.html").read_text()
    found = Resources()
    found.feed(page)
    assert found.tags.count("img") == 8 and found.tags.count("video") == 1
    assert all(url.startswith("data:") for url in found.urls) and len(found.urls) == 9
    assert not re.search(r"url\(|@import|<script|<link", page)
    assert "b" not in found.tags and "&lt;b&gt;" in page
    rows = re.findall(r'<tr class="(\w+)">(.*?)</tr>', page)
    assert len(rows) == len(result["skills"])
    for (kind, cells), row in zip(rows, result["skills"]):
        assert row["verdict"] in cells and kind == row["verdict"].split(":")[0].lower()
    for name in result["args"]:
        assert f"<td>{name}</td>" in page


def test_plot_does_not_import_torch():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import plot; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_bad_input_ends_in_one_line(run, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    other = tmp_path / "other.json"
    other.write_text("[1]")
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        ("fig99", run): "no 'fig99'",
        ("table1", "results/table1.json"): "python benchmark/grid.py table1 --table --read",
        ("fig5", tmp_path / "nowhere"): "missing",
        ("fig5", empty): "evaluate.py",
        ("fig9", empty): "TensorBoard",
        ("fig5", broken): "damaged",
        ("fig5", other): "damaged",
        ("fig5",): "which run",
        ("demo", run, run): "one run",
        ("report", run, run): "one run",
        ("fig5", run, "--out", tmp_path / "a.doc"): "should end in",
        ("report", run, "--out", tmp_path / "a.png"): "should end in",
        ("fig5", run, "--out", tmp_path / "no" / "a.png"): "nowhere to write",
    }
    before = sorted(tmp_path.rglob("*"))
    for argv, expected in cases.items():
        with pytest.raises(SystemExit) as error:
            plot.main([str(a) for a in argv])
        message = str(error.value)
        assert expected in message and "\n" not in message, argv
        assert message.startswith("plot.py: error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_reward_without_r_psd_is_named_as_such():
    result = {"script": "psd", "env_id": "Ant-v4", "args": {"psd_coef": 1.0, "ext_coef": 1.0}}
    assert plot.method_of(result) == "PSD + $r_{ext}$"
    result["args"] = {"psd_coef": 0.0, "turn_coef": 1.0, "regularity_coef": 2.0}
    assert plot.method_of(result) == "PSD's $\\phi_L$ + turn + regularity"


PROGRESS = "epoch,gradient_steps,minutes,turn,true\n"


def write_progress(path, offset, steps=(64, 128, 192)):
    lines = [
        f"{i},{n},{n / 60},{0.1 * i + offset},{8 if i == 2 else ''}" for i, n in enumerate(steps)
    ]
    path.write_text(PROGRESS + "\n".join(lines) + "\n")
    return str(path)


def test_curves_show_the_mean_over_seeds_and_their_range(tmp_path):
    """Seeds at 0 and 0.2 above a line of slope 0.1, the second one trained for longer."""
    paths = [
        write_progress(tmp_path / "a.csv", 0.0),
        write_progress(tmp_path / "b.csv", 0.2, steps=(64, 128, 192, 256)),
        write_progress(tmp_path / "c.csv", 0.5),
    ]
    runs = [plot.read_progress(path) for path in paths]
    fig = plot.curves(runs, labels=["ours", "ours", "paper"])
    true, turn = [ax for ax in fig.axes if ax.axison]
    assert (true.get_ylabel(), turn.get_ylabel()) == ("true skills", "turn")
    means = {line.get_label(): line for line in turn.lines if line.get_linewidth() > 1}
    assert set(means) == {"ours, 2 seeds", "paper, 1 seed"}
    x, y = means["ours, 2 seeds"].get_data()
    assert x[[0, -1]] == pytest.approx([0.064, 0.192]) and y[[0, -1]] == pytest.approx([0.1, 0.3])
    band = turn.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(0.0) and band.max() == pytest.approx(0.4)
    plot.plt.close(fig)
    plot.main(["curves", *paths, "--labels", "A", "A", "B", "--out", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is damaged, or not of benchmark/progress.py"),
        (PROGRESS, "is damaged, or not of benchmark/progress.py"),
        (PROGRESS + "1,128,1,0.1,\n2,64,2,0.1,\n", "is damaged, or not of benchmark/progress.py"),
        (PROGRESS + "1,64,1,much,\n", "is damaged, or not of benchmark/progress.py"),
        ("epoch,gradient_steps\n1,64\n", "has none of the columns"),
        (None, "cannot be read"),
    ],
)
def test_curves_of_something_else_get_one_line(tmp_path, text, message):
    path = tmp_path / "progress.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=message):
        plot.main(["curves", str(path), "--out", str(tmp_path / "out.png")])
    assert not (tmp_path / "out.png").exists()


def test_labels_have_to_fit(tmp_path):
    path = write_progress(tmp_path / "a.csv", 0.0)
    with pytest.raises(SystemExit, match="2 labels for 1 runs"):
        plot.main(["curves", path, "--labels", "a", "b"])
    with pytest.raises(SystemExit, match="--labels are for curves, not for fig1"):
        plot.main(["fig1", path, "--labels", "a"])
