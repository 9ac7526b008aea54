"""play.py: the simulation behind the slider, the page in a real browser, and the page on the disk.

The tests in a browser need Debian's chromium (apt-get install chromium); without it they are
skipped. Everything else needs no browser."""

import base64
import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from types import SimpleNamespace

import cv2
import mujoco
import numpy as np
import pytest
from conftest import REPO

import downstream_ppo
import play
import play_export

CHEETAH = str(REPO / "results/halfcheetah")
SKILLS = str(REPO / "results/table1/skills/HalfCheetah_psd_radius_s1")
CHROMIUM = shutil.which("chromium")
SOFTWARE = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
PATIENCE = 20  # seconds that a test waits at most
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")


def open_simulation(path=CHEETAH, **options):
    return play.Simulation(play.open_robot(play.Args(run=str(path), **options)))


@pytest.fixture(autouse=True)
def same_signal_handlers():
    """play.play takes Ctrl-C; the tests give it back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers):
        signal.signal(number, handler)


@pytest.fixture
def simulation():
    return open_simulation()


def error_of(argv):
    """The one line in which play.py ends."""
    with pytest.raises(SystemExit) as caught:
        play.main(argv)
    line = str(caught.value)
    assert line.startswith("play.py: error: ") and "\n" not in line
    return line


def wait_until(condition, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


# ----------------------------------- The simulation -----------------------------------
def test_time_passes_as_fast_as_it_should(simulation):
    for _ in range(30):
        simulation.advance(1 / 30)
    assert simulation.time == pytest.approx(1.0, abs=1.5 * simulation.dt)
    simulation.set_speed(4.0)
    for _ in range(30):
        simulation.advance(1 / 30)
    assert simulation.time == pytest.approx(5.0, abs=2.5 * simulation.dt)


def test_a_pause_stops_time(simulation):
    simulation.paused = True
    assert simulation.advance(0.1) == 0.0
    assert simulation.time == 0.0
    simulation.paused = False
    assert simulation.advance(0.1) > 0.0


def test_lost_time_is_not_made_up_for(simulation):
    """Or a laptop that wakes up would simulate the whole night."""
    assert simulation.advance(3600.0) <= play.MAX_DEBT + simulation.dt


@pytest.mark.parametrize("speed", [0.0, -1.0, 1e9, float("nan")])
def test_a_speed_that_no_slider_offers_changes_nothing(simulation, speed):
    simulation.set_speed(2.0)
    simulation.set_speed(speed)
    assert simulation.speed == 2.0


def test_the_measured_period_follows_L(simulation):
    for L in (13, 9):
        simulation.set_L(L)
        simulation.measure()
        assert simulation.period is None  # that of the last L is forgotten
        for _ in range(6 * 2 * L):
            simulation.step()
        simulation.measure()
        assert simulation.period == pytest.approx(2 * L, rel=0.1)


@pytest.mark.parametrize("L", [4, 21, 0, -1, 10**9])
def test_an_L_that_no_slider_offers_changes_nothing(simulation, L):
    before = simulation.robot.L
    simulation.set_L(L)
    assert simulation.robot.L == before


def test_L_reaches_the_policy(simulation):
    simulation.set_L(5)
    slow = simulation.robot.act(simulation.obs)
    expected = simulation.robot.policy.act(simulation.obs, 5)
    assert np.array_equal(slow, expected)
    simulation.set_L(20)
    assert not np.array_equal(simulation.robot.act(simulation.obs), slow)


def test_latent_points_lie_on_the_circle(simulation):
    L = simulation.robot.L
    for _ in range(8 * L):
        simulation.step()
    points = simulation.latent_points()
    assert points.shape == (2 * L + 1, 2)
    radius = np.linalg.norm(points, axis=1).mean()
    assert radius == pytest.approx(L / 2, rel=0.25)


def test_the_principal_plane_keeps_lengths_and_its_orientation():
    rng = np.random.default_rng(0)
    plane, _ = np.linalg.qr(rng.normal(size=(6, 2)))
    angle = np.linspace(0, 2 * np.pi, 40)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    latents = circle @ plane.T  # (40, 6)
    found = play_export.principal_plane(latents, plane)
    assert np.allclose(latents @ found, circle)
    again = play_export.principal_plane(latents[:30], found)  # other singular vectors
    assert np.allclose(latents @ again, circle)


def test_pictures_lie_between_two_steps(simulation):
    simulation.step()
    data = mujoco.MjData(simulation.model)
    for share in (0.0, 0.5, 1.0):
        simulation.debt = share * simulation.dt
        simulation.pose(data)
        expected = (1 - share) * simulation.last_qpos + share * simulation.qpos
        assert np.allclose(data.qpos, expected)  # a planar robot: no quaternions
    assert not np.allclose(simulation.last_qpos, simulation.qpos)


def test_a_push_changes_the_velocity_and_nothing_else(simulation):
    velocity = simulation.data.qvel.copy()
    position = simulation.data.qpos.copy()
    simulation.push()
    change = simulation.data.qvel - velocity
    assert abs(change[0]) == pytest.approx(play.PUSH)
    assert not change[1:].any()
    assert np.array_equal(simulation.data.qpos, position)


def test_a_fall_is_counted_and_starts_anew(simulation, monkeypatch):
    for _ in range(30):
        simulation.step()
    env = simulation.robot.env
    step = env.step
    monkeypatch.setattr(env, "step", lambda action: (*step(action)[:2], True, False, {}))
    simulation.step()
    assert simulation.num_falls == 1
    assert abs(simulation.qpos[0]) < 0.2  # at the start again
    assert len(simulation.latents) == 0


def test_psd_metra_has_a_z_that_reaches_the_policy():
    simulation = open_simulation(REPO / "results/psd_metra/ant_mutual")
    before = simulation.robot.act(simulation.obs)
    simulation.set_z(np.array([0.0, 1.0]))
    after = simulation.robot.act(simulation.obs)
    expected = simulation.robot.policy.act(simulation.obs, simulation.robot.L, [0.0, 1.0])
    assert np.array_equal(after, expected)
    assert not np.array_equal(after, before)


def test_a_baseline_has_skills_and_no_circle():
    simulation = open_simulation(REPO / "results/fig3/metra")
    assert simulation.robot.trained is None
    assert len(simulation.robot.directions) == 16
    simulation.set_z(simulation.robot.directions[3])
    expected = simulation.robot.policy.act(simulation.obs, 3)
    assert np.array_equal(simulation.robot.act(simulation.obs), expected)
    simulation.step()
    assert len(simulation.latent_points()) == 0


@pytest.fixture
def task_run(tmp_path):
    """The folder of a downstream run whose pi^h has not learned anything."""
    args = downstream_ppo.Args(skills=SKILLS, hidden_units=8)
    skills = downstream_ppo.Skills(downstream_ppo.load_skills(SKILLS), args.task, "cpu")
    agent = downstream_ppo.HighLevelAgent(args, 18, len(skills.names), "cpu")
    progress = {"epoch": 0, "global_step": 0}
    downstream_ppo.save_checkpoint(tmp_path, args, progress, agent, skills)
    return tmp_path


def test_a_task_shows_what_pi_h_chooses_or_obeys(task_run):
    simulation = open_simulation(task_run)
    robot = simulation.robot
    choices = []
    for _ in range(40):
        simulation.step()
        choices.append(robot.choice)
    for start in range(0, 40, 10):  # H = 10
        assert len(set(choices[start : start + 10])) == 1
    assert len(set(choices)) > 1
    lines = dict(robot.task_lines)
    assert lines["skill"].startswith(robot.names[choices[-1]])
    assert lines["hurdles"] == "0 of 7 cleared"
    robot.by_hand = True
    robot.chosen_by_hand = 2
    simulation.step()
    assert dict(robot.task_lines)["skill"] == f"{robot.names[2]}, your choice"


# -------------------------------------- Bad input -------------------------------------
@pytest.mark.parametrize(
    "argv, message",
    [
        (["nowhere"], "nowhere is missing: give a run folder"),
        ([str(REPO / "results/pendulum")], "Pendulum-v1 has no MuJoCo model"),
        ([CHEETAH, "--L", "4"], "--L 4 is outside the trained range, 5 to 20"),
        ([CHEETAH, "--L", "21"], "--L 21 is outside the trained range, 5 to 20"),
        ([str(REPO / "results/fig3/metra"), "--L", "5"], "have no L to choose"),
        ([CHEETAH, "--port", "70000"], "--port 70000 is not from 0 to 65535"),
        ([CHEETAH, "--host", "no.such.host.invalid"], "cannot serve on no.such.host.invalid"),
        ([CHEETAH, "--export", "nowhere/page.html"], "nowhere is missing"),
        ([CHEETAH, "--export", str(REPO)], "is a folder"),
        ([CHEETAH, "--export", str(REPO / "README.md")], "is no page of play.py"),
    ],
)
def test_bad_input_ends_in_one_line(argv, message):
    assert re.search(message, error_of(argv))


@pytest.mark.parametrize("missing", ["data", "dt"])
def test_a_robot_without_what_the_page_reads_ends_in_one_line(missing):
    attributes = {name: 0 for name in ("model", "data", "dt") if name != missing}
    env = SimpleNamespace(unwrapped=SimpleNamespace(**attributes))
    with pytest.raises(SystemExit, match=f"MyRobot-v0 has no attribute '{missing}'"):
        play.check_model(env, "MyRobot-v0")


def test_a_damaged_checkpoint_ends_in_one_line(tmp_path):
    whole = (REPO / "results/halfcheetah/model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in error_of([str(tmp_path)])


def test_a_damaged_task_ends_in_one_line(task_run):
    whole = (task_run / "model.pt").read_bytes()
    with zipfile.ZipFile(task_run / "model.pt") as archive:
        name = next(name for name in archive.namelist() if "/data/" in name)
        start = whole.index(archive.read(name))
    changed = bytearray(whole)
    changed[start] ^= 1
    (task_run / "model.pt").write_bytes(changed)
    assert "damaged" in error_of([str(task_run)])


def test_a_port_in_use_ends_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = error_of([CHEETAH, "--port", str(port)])
    assert f"port {port} (Address already in use)" in line


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)  # as if it were not installed
    assert "pip install -r requirements-play.txt" in error_of([CHEETAH])


# ------------------------------------- The server -------------------------------------
@contextlib.contextmanager
def served(simulation):
    """The page of a simulation. Yields the server; its address is `address_of(server)`."""
    server = play.start_server("127.0.0.1", 0, "test")
    stop = threading.Event()
    thread = threading.Thread(target=play.serve, args=(server, simulation, stop), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join(PATIENCE)
        server.stop()


def address_of(server):
    return f"http://127.0.0.1:{server.get_port()}"


def test_no_path_reaches_the_file_system_and_no_tunnel_opens(simulation, monkeypatch):
    viser = pytest.importorskip("viser", reason="needs requirements-play.txt")

    def refuse(*args, **kwargs):  # in place of viser's own, which would call out
        raise AssertionError("a tunnel would have been opened")

    monkeypatch.setattr(viser.ViserServer, "request_share_url", refuse)
    with served(simulation) as server:
        found = {}
        for path in [
            "/",
            "/../../../../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "//etc/passwd",
        ]:
            connection = http.client.HTTPConnection("127.0.0.1", server.get_port())
            connection.putrequest("GET", path, skip_accept_encoding=True)
            connection.endheaders()
            found[path] = connection.getresponse().status
            connection.close()
        assert found.pop("/") == 200
        assert set(found.values()) == {404}
        assert server.request_share_url() is None
        assert server._share_tunnel is None


def test_nobody_watching_nothing_moves(simulation):
    with served(simulation):
        time.sleep(0.5)
        assert simulation.time == 0.0


@pytest.mark.parametrize("host, warns", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_another_host_is_warned_about(host, warns, simulation, monkeypatch, capsys):
    monkeypatch.setattr(play, "serve", lambda *_: None)
    options = play.Args(run=CHEETAH, host=host, port=0)
    play.play(options, simulation.robot)
    printed = capsys.readouterr()
    assert re.search(r"open http://[\d.]+:\d+ in a browser", printed.out)
    assert ("can watch and steer" in printed.err) == warns


def test_the_command_prints_its_address_and_ends_with_ctrl_c():
    command = [sys.executable, str(REPO / "play.py"), CHEETAH, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert re.fullmatch(r"HalfCheetah-v4: open http://127.0.0.1:\d+ in a browser.*\n", line)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert errors == ""


# ----------------------------------- The static page ----------------------------------
@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "page.html"
    play.main([CHEETAH, "--export", str(path)])
    return path


def content_of(path):
    return json.loads(re.search(r"const data = (\{.*\});", path.read_text())[1])


def test_the_page_holds_every_trained_L(page_file):
    content = content_of(page_file)
    assert [rollout["L"] for rollout in content["rollouts"]] == list(range(5, 21))
    assert page_file.stat().st_size < 3e6
    num_true = 0
    for rollout in content["rollouts"]:
        period = rollout["period"]
        num_true += period is not None and abs(period / (2 * rollout["L"]) - 1) < 0.1
    assert num_true >= 12


def test_the_page_holds_the_robot_as_it_moved(page_file):
    """The ends of the capsules keep their distance, and none is far below the ground."""
    content = content_of(page_file)
    rollout = content["rollouts"][5]
    numbers = np.frombuffer(base64.b64decode(rollout["ends"]), np.int16) / 1000
    ends = numbers.reshape(rollout["frames"], -1, 2, 3)
    model = open_simulation().model
    torso = model.geom("torso")
    lengths = np.linalg.norm(ends[:, 0, 1] - ends[:, 0, 0], axis=-1)
    assert np.allclose(lengths, 2 * torso.size[1], atol=0.003)
    assert len(content["radii"]) == ends.shape[1] == model.ngeom - 1  # all but the floor
    lowest = ends[..., 2].min()
    assert -0.1 < lowest < 0.2
    highest = np.abs(ends[:, 0, :, 0]).max()
    assert highest < 1.5  # relative to the torso


def test_the_page_needs_nothing_from_outside():
    template = play_export.TEMPLATE.read_text()
    assert not re.search(r"https?://|src=|@import|url\(|fetch\(|XMLHttpRequest", template)


def test_no_name_ends_the_script(simulation, tmp_path, monkeypatch):
    monkeypatch.setattr(play_export, "SECONDS", 0.1)
    simulation.robot.name = "</script><script>alert(1)</script>"
    simulation.robot.trained = [5]
    play_export.export(simulation.robot, tmp_path / "page.html", seed=0)
    assert (tmp_path / "page.html").read_text().count("</script>") == 1
    assert content_of(tmp_path / "page.html")["name"] == simulation.robot.name


def test_a_full_disk_leaves_the_old_page(page_file, monkeypatch):
    before = page_file.read_text()
    monkeypatch.setattr(play_export, "SECONDS", 0.1)
    monkeypatch.setattr(play_export, "MARK", b"written by play.py")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(play_export.os, "replace", full)
    assert "No space left on device" in error_of([CHEETAH, "--export", str(page_file)])
    assert page_file.read_text() == before
    assert list(page_file.parent.iterdir()) == [page_file]


# ---------------------------------- In a real browser ---------------------------------
@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE)
        yield browser
        browser.close()


def visit(browser, address, width=480, height=400):
    """A new tab; what goes wrong in it is in `tab.problems`, what it asks for in `tab.requests`."""
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.set_default_timeout(1000 * PATIENCE)
    tab.problems = []
    tab.requests = []
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.on("console", lambda m: tab.problems.append(m.text) if m.type == "error" else None)
    tab.on("request", lambda request: tab.requests.append(request.url))
    tab.goto(address, wait_until="commit")
    return tab


def picture_of(element):
    return cv2.imdecode(np.frombuffer(element.screenshot(), np.uint8), cv2.IMREAD_COLOR)


def num_brown(picture):
    """Pixels in the colour of the HalfCheetah: nothing else on the page is red before blue."""
    picture = picture.astype(int)
    return int((picture[..., 2] - picture[..., 0] > 30).sum())


@needs_chromium
def test_the_page_shows_a_robot_that_moves(browser, simulation):
    with served(simulation) as server:
        tab = visit(browser, address_of(server), 640, 400)
        tab.get_by_text("of real time").wait_for()
        canvas = tab.locator("canvas").first
        area = {"x": 100, "y": 100, "width": 220, "height": 200}  # left of the panel

        def middle():
            image = tab.screenshot(clip=area)
            return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)

        canvas.wait_for()
        wait_until(lambda: num_brown(middle()) > 500)
        first = middle()
        wait_until(lambda: np.abs(middle().astype(int) - first).mean() > 0.5)
        assert tab.problems == []
        assert all(re.match(rf"(blob:)?{address_of(server)}/", url) for url in tab.requests)
        tab.close()


@needs_chromium
def test_the_slider_changes_L_and_the_period_follows(browser, simulation):
    with served(simulation) as server:
        tab = visit(browser, address_of(server))
        tab.get_by_role("slider").first.wait_for()
        L_slider, speed_slider = tab.get_by_role("slider").all()
        speed_slider.focus()
        tab.keyboard.press("End")
        wait_until(lambda: simulation.speed == 4.0)
        L_slider.focus()
        tab.keyboard.press("Home")
        wait_until(lambda: simulation.robot.L == 5)
        for _ in range(4):
            tab.keyboard.press("ArrowRight")
        wait_until(lambda: simulation.robot.L == 9)
        tab.get_by_text(re.compile(r"1[789]\.\d steps .* 2L = 18")).wait_for()
        radius = tab.locator("svg circle[stroke-dasharray]").nth(1).get_attribute("r")
        assert float(radius) == 4.5
        tab.close()


@needs_chromium
def test_pause_stops_time_and_a_push_and_a_reset_do_what_they_say(browser, simulation):
    with served(simulation) as server:
        tab = visit(browser, address_of(server))
        tab.get_by_text("of real time").wait_for()
        tab.get_by_label("pause").press("Space")
        tab.get_by_text("paused").wait_for()
        stopped = simulation.time
        assert stopped > 0
        time.sleep(0.5)
        assert simulation.time == stopped
        before = simulation.data.qvel[0]
        tab.get_by_role("button", name="random push").press("Enter")
        wait_until(lambda: abs(simulation.data.qvel[0] - before) > 1)
        tab.get_by_role("button", name="reset").press("Enter")
        wait_until(lambda: abs(simulation.data.qvel[0]) < 1)
        tab.get_by_label("pause").press("Space")
        wait_until(lambda: simulation.time > stopped)
        tab.close()


@needs_chromium
def test_two_tabs_steer_one_robot(browser, simulation):
    with served(simulation) as server:
        one = visit(browser, address_of(server))
        other = visit(browser, address_of(server))
        one.get_by_role("slider").first.focus()
        one.keyboard.press("End")
        for tab in (one, other):
            tab.get_by_text("2L = 40").wait_for()
        one.close()
        wait_until(lambda: len(server.get_clients()) == 1)
        other.get_by_role("slider").first.focus()
        other.keyboard.press("Home")
        other.get_by_text("2L = 10").wait_for()
        assert simulation.robot.L == 5
        assert other.problems == []
        other.close()


def memory():
    """Resident megabytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


@needs_chromium
def test_visitors_leave_nothing_behind(browser, simulation):
    """20 visits. Every other tab is killed, so that it cannot say goodbye."""
    sync_api = pytest.importorskip("playwright.sync_api")

    def visits(count):
        for i in range(count):
            tab = visit(browser, address_of(server), 160, 120)
            wait_until(lambda: len(server.get_clients()) == 1)
            if i % 2 == 0:
                with tab.expect_event("crash"), contextlib.suppress(sync_api.Error):
                    tab.goto("chrome://crash")
            tab.close()
            wait_until(lambda: len(server.get_clients()) == 0)

    with served(simulation) as server:
        visits(4)  # fills caches, and viser's pool of threads
        threads = threading.active_count()
        megabytes = memory()
        visits(20)
        assert threading.active_count() <= threads + 2
        assert memory() < megabytes + 15


@needs_chromium
def test_a_task_in_the_browser(browser, task_run):
    simulation = open_simulation(task_run)
    with served(simulation) as server:
        tab = visit(browser, address_of(server))
        tab.get_by_text("0 of 7 cleared").wait_for()
        tab.get_by_text("chosen by π").wait_for()
        tab.get_by_label("choose by hand").press("Space")
        tab.get_by_text("L = 5, your choice").wait_for()
        assert simulation.robot.by_hand
        assert tab.problems == []
        tab.close()


@needs_chromium
def test_the_exported_page_plays_from_the_disk(browser, page_file):
    tab = visit(browser, page_file.as_uri())
    robot = tab.locator("#robot")
    first = picture_of(robot)
    assert num_brown(first) > 500
    wait_until(lambda: np.abs(picture_of(robot).astype(int) - first).mean() > 0.5)
    tab.locator("#L").focus()
    tab.keyboard.press("Home")
    assert tab.locator("#L_value").inner_text() == "5"
    assert "2L = 10" in tab.locator("#period").inner_text()
    tab.locator("#pause").click()
    stopped = tab.locator("#time").inner_text()
    time.sleep(0.5)
    assert tab.locator("#time").inner_text() == stopped
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
    tab.close()
