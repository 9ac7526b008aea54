"""The pictures of docs/play.md: the page of play.py, in a real browser, while L changes.

    python benchmark/screenshots.py results/halfcheetah --out docs/play

writes docs/play.png (the last L) and docs/play_slider.gif. Needs chromium (Debian's package) and
requirements-dev.txt.
"""

import re
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2  # noqa: E402
import imageio.v2 as imageio  # noqa: E402
import numpy as np  # noqa: E402
import tyro  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

import play  # noqa: E402

SOFTWARE = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SIZE = {"width": 960, "height": 590}
GIF_WIDTH = 640
PATIENCE = 60  # seconds to wait for the page


@dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """run folder, or any folder or file with a model.pt"""
    out: str = "play"
    """what the names of both pictures start with"""
    periods: tuple[int, ...] = (7, 12, 20)
    """the values of L that the slider is moved to"""
    frames: int = 16
    """frames of the GIF per L"""
    frames_per_second: float = 5.0
    """how often the page is photographed, if the browser is fast enough"""


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"screenshots.py: error: {' '.join(str(message).split())}")


def photograph(tab):
    image = cv2.imdecode(np.frombuffer(tab.screenshot(), np.uint8), cv2.IMREAD_COLOR)
    return image[..., ::-1]  # RGB


def move_slider(tab, simulation, L):
    """From the left end, one key press per integer."""
    slider = tab.get_by_role("slider").first
    slider.focus()
    tab.keyboard.press("Home")
    for _ in range(L - simulation.robot.trained[0]):
        tab.keyboard.press("ArrowRight")
    deadline = time.time() + PATIENCE
    while simulation.robot.L != L:
        if time.time() > deadline:
            fail(f"the slider does not reach L = {L}")
        time.sleep(0.05)


def record(tab, simulation, args):
    """The frames of the GIF, their mean distance in seconds, and a last one with the period."""
    frames = []
    seconds = 0.0
    tab.get_by_text("of real time").wait_for()
    notice = tab.locator("button.mantine-Notification-closeButton")
    if notice.count() > 0:  # that chromium renders without a GPU
        notice.first.click()
    for L in args.periods:
        move_slider(tab, simulation, L)
        if L == args.periods[0]:
            tab.get_by_text(re.compile(f"2L = {2 * L}")).wait_for()
        start = time.time()
        for i in range(args.frames):
            time.sleep(max(0.0, start + i / args.frames_per_second - time.time()))
            frames.append(photograph(tab))
        seconds += time.time() - start
    tab.get_by_text(re.compile(rf"\d steps .* 2L = {2 * L}")).wait_for()
    return frames, seconds / len(frames), photograph(tab)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    chromium = shutil.which("chromium")
    if chromium is None:
        fail("chromium is missing (on Debian: apt-get install chromium)")
    if not Path(args.out).parent.is_dir():
        fail(f"--out {args.out} is in a folder that does not exist")
    if args.frames < 1 or not 0 < args.frames_per_second <= 60 or not args.periods:
        fail(
            f"--frames {args.frames}, --frames-per-second {args.frames_per_second} and --periods "
            f"{args.periods}: need one frame, up to 60 per second, and one L at least"
        )
    robot = play.open_robot(play.Args(run=args.run))
    unknown = set(args.periods) - set(range(robot.trained[0], robot.trained[-1] + 1))
    if unknown:
        fail(f"--periods {sorted(unknown)} are outside of the trained range")
    simulation = play.Simulation(robot)
    server = play.start_server("127.0.0.1", 0, robot.name)
    stop = threading.Event()
    thread = threading.Thread(target=play.serve, args=(server, simulation, stop), daemon=True)
    thread.start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=SOFTWARE)
        tab = browser.new_page(viewport=SIZE)
        tab.set_default_timeout(1000 * PATIENCE)
        tab.goto(f"http://127.0.0.1:{server.get_port()}", wait_until="commit")
        frames, interval, last = record(tab, simulation, args)
        browser.close()
    stop.set()
    thread.join(PATIENCE)
    server.stop()
    imageio.imwrite(f"{args.out}.png", last)
    height = round(GIF_WIDTH * SIZE["height"] / SIZE["width"])
    small = [cv2.resize(f, (GIF_WIDTH, height), interpolation=cv2.INTER_AREA) for f in frames]
    duration = 1000 * interval  # in real time, however slow the browser is
    imageio.mimsave(f"{args.out}_slider.gif", small, duration=duration, loop=0, palettesize=64)
    print(f"wrote {args.out}.png and {args.out}_slider.gif")


if __name__ == "__main__":
    main()
