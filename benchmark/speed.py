"""How fast, and against what limit? One command, one run, ours and its peers interleaved.

    python benchmark/speed.py                       # all of it, about fifteen minutes
    python benchmark/speed.py --only update         # a part: update, collect, epoch, growth, memory
    python benchmark/speed.py --threads 2

Every number is a median over rounds; in each round everything that is compared runs once, so that a
noisy machine hits all alike. Read the ratios, not the milliseconds. The limits are measured, too:
plain matrix multiplications of the same shapes for an update, raw `mj_step` with the same controls
for collection. Prints a table and writes JSON. Leave the machine alone while it runs.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gymnasium as gym  # noqa: E402
import mujoco  # noqa: E402
import mujoco.batch  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402

import plot  # noqa: E402
import psd  # noqa: E402

ROBOTS = ["HalfCheetah-v4", "Ant-v4", "Walker2d-v4", "Hopper-v4", "Humanoid-v4"]
PARTS = ["update", "collect", "epoch", "growth", "memory"]
OBS_DIM = 17  # of HalfCheetah
ACTION_DIM = 6
NUM_ENVS = 8  # episodes per epoch


@dataclass
class Args:
    only: tuple[str, ...] = ()  # parts to run (none: all)
    rounds: int = 15  # of each comparison; the median counts
    threads: int = 1  # CPU threads of torch
    hidden: tuple[int, ...] = (128, 256, 1024)  # units of a hidden layer
    robots: tuple[str, ...] = tuple(ROBOTS)  # for collection
    out: str = "runs/speed.json"  # the JSON to write


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"speed.py: error: {' '.join(str(message).split())}")


def check_args(args):
    """Refuses, before any work, what would fail after minutes of it."""
    for part in args.only:
        if part not in PARTS:
            fail(f"no part {part!r}: choose from {', '.join(PARTS)}")
    if args.rounds < 1:
        fail(f"--rounds {args.rounds} leaves nothing to take a median of: give 1 or more")
    if args.threads < 1:
        fail(f"--threads {args.threads} is no number of CPU threads: give 1 or more")
    if not args.hidden or min(args.hidden) < 1:
        fail("--hidden needs at least one size of a layer, of 1 or more units")
    if not args.robots:
        fail(f"--robots needs at least one robot, such as {ROBOTS[0]}")
    for robot in args.robots:
        spec = gym.registry.get(robot)
        if spec is None or "mujoco" not in str(spec.entry_point):
            fail(f"--robots {robot} is no MuJoCo robot of Gymnasium: choose from {ROBOTS}")
    out = Path(args.out)
    if out.is_dir():
        fail(f"--out {out} is a folder: give a file in it, such as {out / 'speed.json'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{out.parent} cannot be made ({error.strerror}): give another --out")


def interleave(functions, rounds):
    """Median seconds of each function, all run once per round, after one round of warm-up."""
    times = {name: [] for name in functions}
    for i in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds = time.perf_counter() - start
            if i > 0:
                times[name].append(seconds)
    return {name: float(np.median(values)) for name, values in times.items()}


# ------------------------------ What is taken from psd.py -----------------------------
def random_episode(rng, length, obs_dim, action_dim):
    def uniform(*shape):
        return rng.uniform(-1, 1, shape).astype(np.float32)

    obs = uniform(length + 1, obs_dim)
    actions = uniform(length, action_dim)
    velocity = uniform(length)
    return psd.Episode(obs, actions, velocity, 0)


def skill_of(L, embed_dim=8):
    """Embed(L), as the replay buffer stores it."""
    return psd.embed_period(torch.tensor(float(L)), embed_dim)


def make_buffer(capacity, T, obs_dim, action_dim):
    return psd.ReplayBuffer(capacity, T, obs_dim, action_dim, len(skill_of(1)), "cpu")


def store_episode(buffer, episode, L):
    buffer.add(episode, skill_of(L), L)


def make(hidden=256, transitions=20_000, L=(10, 20), T=200):
    """Arguments, agent, and a buffer of random episodes of HalfCheetah's sizes."""
    args, _ = psd.parse_args(["--env-id", "HalfCheetah-v4", "--hidden-units", str(hidden)])
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
    agent = psd.Agent(args, OBS_DIM, action_space, "cpu")
    buffer = make_buffer(args.buffer_size, T, OBS_DIM, ACTION_DIM)
    rng = np.random.default_rng(0)
    for i in range(max(1, transitions // T)):
        episode = random_episode(rng, min(T, transitions), OBS_DIM, ACTION_DIM)
        store_episode(buffer, episode, L[i % len(L)])
    return args, agent, buffer


def update(agent, buffer, psd_args):
    psd.update(agent, buffer, psd_args)


class IdlePhi(torch.nn.Module):
    """An encoder that costs nothing."""

    def forward(self, obs, skill):
        return obs[..., :3]


def sac_update(agent, buffer, psd_args):
    """SAC alone: the reward is given, as to stable-baselines3. The agent has an IdlePhi."""
    psd_reward = psd.psd_reward
    external_reward = psd.external_reward
    psd.psd_reward = lambda *_: torch.zeros(psd_args.batch_size)
    psd.external_reward = lambda *_: torch.zeros(psd_args.batch_size)
    try:
        psd.update(agent, buffer, psd_args, train_phi=False)
    finally:
        psd.psd_reward = psd_reward
        psd.external_reward = external_reward


def skills_of(L, count, psd_args):
    """Embed(L) for `count` episodes."""
    return psd.embed_period(torch.full((count,), float(L)), psd_args.embed_dim)


def rollout(envs, agent, skill):
    """One episode per environment, of observations that are not normalised."""
    obs_dim = envs[0].observation_space.shape[0]
    statistics = {"obs_mean": torch.zeros(obs_dim), "obs_std": torch.ones(obs_dim)}
    return psd.rollout(envs, (0,), agent, skill, statistics)


def act(agent, obs, skill):
    return agent.actor.act(torch.as_tensor(obs, dtype=torch.float32), skill, False).numpy()


def measure_episode(agent, episode, skill, L, psd_args):
    """The statistics that are logged of each episode."""
    latents = psd.encode(agent, episode, skill)
    psd.latent_statistics(latents, L, psd_args.kappa)


# -------------------------------------- Updates ---------------------------------------
def sb3_update(hidden, obs_dim, action_dim):
    """One gradient step of stable-baselines3's SAC, on the same sizes and kind of data."""
    try:
        from stable_baselines3 import SAC
        from stable_baselines3.common.logger import Logger
    except ImportError:
        fail("stable-baselines3 is missing: pip install -r requirements-dev.txt brings it")

    class Sizes(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        action_space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)

    policy = {"net_arch": [hidden, hidden]}
    model = SAC("MlpPolicy", Sizes(), policy_kwargs=policy, buffer_size=20_000, device="cpu")
    rng = np.random.default_rng(0)
    for _ in range(20_000):
        obs, next_obs = rng.uniform(-1, 1, (2, 1, obs_dim)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, action_dim)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, np.zeros(1), np.zeros(1), [{}])
    model.set_logger(Logger(None, []))
    return partial(model.train, gradient_steps=1, batch_size=256)


def multiplications(batch, sizes, forward=1, weights=1, inputs=1, first_input=False):
    """(M, K, N) of a network's products: forward, gradients of weights, gradients of inputs."""
    shapes = []
    for i, (size_in, size_out) in enumerate(zip(sizes[:-1], sizes[1:])):
        shapes += [(batch, size_in, size_out)] * forward
        shapes += [(size_in, batch, size_out)] * weights
        if i > 0 or first_input:
            shapes += [(batch, size_out, size_in)] * inputs
    return shapes


def needed_products(args, obs_dim, action_dim):
    """The products that no implementation of one PSD update can do without: (phi's, SAC's)."""
    hidden = [args.hidden_units] * args.hidden_layers
    input_dim = obs_dim + args.embed_dim
    phi = [input_dim, *hidden, args.latent_dim]
    actor = [input_dim, *hidden, 2 * action_dim]
    critic = [input_dim + action_dim, *hidden, 1]
    B = args.batch_size
    of_phi = multiplications(3 * args.phi_batch_size, phi)  # encoder step
    of_phi += multiplications(2 * B, phi, weights=0, inputs=0)  # reward
    of_sac = multiplications(B, actor, weights=0, inputs=0)  # next actions
    of_sac += 2 * multiplications(B, critic, weights=0, inputs=0)  # targets
    of_sac += 2 * multiplications(B, critic)  # critic step
    of_sac += multiplications(B, actor)  # actor step
    of_sac += 2 * multiplications(B, critic, weights=0, first_input=True)  # dQ/da
    return of_phi, of_sac


def plain_gemms(shapes):
    """The same products, alone: each shape with operands and result at hand."""
    operands = []
    for m, k, n in shapes:
        operands.append((torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)))

    def run():
        for a, b, out in operands:
            torch.mm(a, b, out=out)

    return run


def update_speed(args):
    """1 and 2: one SAC update against stable-baselines3's; one PSD update against its products."""
    return {f"hidden {hidden}": update_of_size(hidden, args.rounds) for hidden in args.hidden}


def update_of_size(hidden, rounds):
    psd_args, agent, buffer = make(hidden)
    _, sac_agent, _ = make(hidden)
    sac_agent.phi = IdlePhi()
    of_phi, of_sac = needed_products(psd_args, OBS_DIM, ACTION_DIM)
    functions = {
        "sac": partial(sac_update, sac_agent, buffer, psd_args),
        "sb3_sac": sb3_update(hidden, OBS_DIM + psd_args.embed_dim, ACTION_DIM),
        "sac_gemm": plain_gemms(of_sac),
        "psd": partial(update, agent, buffer, psd_args),
        "psd_gemm": plain_gemms(of_phi + of_sac),
    }
    seconds = interleave(functions, rounds)
    result = {f"{name}_ms": 1e3 * value for name, value in seconds.items()}
    result["sac_over_sb3"] = seconds["sb3_sac"] / seconds["sac"]
    result["sac_share_of_limit"] = seconds["sac_gemm"] / seconds["sac"]
    result["psd_share_of_limit"] = seconds["psd_gemm"] / seconds["psd"]
    return result


# ------------------------------------- Collection -------------------------------------
def collect_speed(args):
    """3: eight episodes with the policy in the loop, against SyncVectorEnv and raw mj_step."""
    rounds = max(3, args.rounds // 3)
    return {env_id: collect_with(env_id, rounds) for env_id in args.robots}


def collect_with(env_id, rounds):
    flags = ["--hidden-units", "256", "--env-id", env_id]
    if not env_id.startswith("HalfCheetah"):
        flags.append("--no-terminate")  # equal work for all
    psd_args, _ = psd.parse_args(flags)
    T = psd_args.episode_length
    envs = [psd.make_env(psd_args) for _ in range(NUM_ENVS)]
    obs_dim = envs[0].observation_space.shape[0]
    agent = psd.Agent(psd_args, obs_dim, envs[0].action_space, "cpu")
    skill = skills_of(10, NUM_ENVS, psd_args)
    vector = gym.vector.SyncVectorEnv(
        [partial(psd.make_env, psd_args)] * NUM_ENVS,
        autoreset_mode=gym.vector.AutoresetMode.DISABLED,
    )
    episodes = rollout(envs, agent, skill)
    controls = np.stack([episode.actions for episode in episodes], axis=1)  # (T, n, A)
    controls = controls.astype(np.float64)

    def sync_vector():
        obs, _ = vector.reset(seed=0)
        for _ in range(T):
            obs, _, _, _, _ = vector.step(act(agent, obs, skill))

    def raw_mj_step():
        cores = [env.unwrapped for env in envs]
        for env in envs:
            env.reset(seed=0)
        for controls_now in controls:
            for core, control in zip(cores, controls_now):
                core.data.ctrl[:] = control
                mujoco.mj_step(core.model, core.data, nstep=core.frame_skip)

    ways = {
        "ours": partial(rollout, envs, agent, skill),
        "sync_vector": sync_vector,
        "raw_mj_step": raw_mj_step,
    }
    faster = faster_ways(envs, partial(act, agent, skill=skill), T)
    seconds = interleave(ways | faster, rounds)
    vector.close()
    result = {f"{name}_steps_per_s": NUM_ENVS * T / value for name, value in seconds.items()}
    result["ours_over_sync_vector"] = seconds["sync_vector"] / seconds["ours"]
    result["ours_share_of_raw"] = seconds["raw_mj_step"] / seconds["ours"]
    for name in sorted(faster):
        result[f"{name}_over_ours"] = seconds["ours"] / seconds[name]
    return result


def faster_ways(envs, policy, T):
    """What could be taken instead of Gymnasium's step; psd.py does not (docs/speed.md says why).

    threads: two threads around env.step, for MuJoCo lets go of Python's lock;
    less_python: mj_step and the environment's own _get_obs, no reward, no info, no checks;
    batch: mujoco.batch.Batch, where the observation is positions and velocities alone."""
    cores = [env.unwrapped for env in envs]
    model = cores[0].model
    pool = ThreadPoolExecutor(2)

    def step(env, action):
        obs, _, _, _, _ = env.step(action)
        return obs

    def threads():
        obs = reset_all(envs, seed=0)
        for _ in range(T):
            obs = np.stack(list(pool.map(step, envs, policy(obs))))

    def less_python():
        obs = reset_all(envs, seed=0)
        for _ in range(T):
            for i, action in enumerate(policy(obs)):
                cores[i].data.ctrl[:] = action
                mujoco.mj_step(model, cores[i].data, nstep=cores[i].frame_skip)
                obs[i] = cores[i]._get_obs()

    ways = {"threads": threads, "less_python": less_python}
    hidden_positions = num_hidden_positions(model)
    obs_dim = envs[0].observation_space.shape[0]
    if obs_dim == model.nq + model.nv - hidden_positions:
        ways["batch"] = batch_way(envs, policy, T)
    return ways


def reset_all(envs, seed):
    """The first observation of each environment, (n, obs_dim)."""
    return np.stack([env.reset(seed=seed)[0] for env in envs])


def num_hidden_positions(model):
    """Global coordinates that Gymnasium leaves out: x and y of a free body, else x."""
    is_free = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    return 2 if is_free else 1


def batch_way(envs, policy, T):
    """An episode of all environments by mujoco.batch.Batch, with the same bits as Gymnasium."""
    cores = [env.unwrapped for env in envs]
    model = cores[0].model
    hidden_positions = num_hidden_positions(model)
    batch = mujoco.batch.Batch(model, len(envs), nthread=1)
    limit = np.inf
    if "Hopper" in envs[0].spec.id or "Walker" in envs[0].spec.id:
        limit = 10.0  # these two clip velocities

    def observe():
        velocities = batch.qvel.clip(-limit, limit)
        return np.concatenate([batch.qpos[:, hidden_positions:], velocities], axis=1)

    def start(seed):
        batch.reset(stage=0)
        for i, env in enumerate(envs):
            env.reset(seed=seed)
            batch.qpos[i] = cores[i].data.qpos
            batch.qvel[i] = cores[i].data.qvel
        batch.forward()

    def advance(actions):
        batch.ctrl[:] = actions
        batch.step(nstep=cores[0].frame_skip)
        return observe()

    def run():
        start(0)
        obs = observe()
        for _ in range(T):
            obs = advance(policy(obs))

    start(1)  # the same bits as Gymnasium, or it is no alternative
    for _ in range(50):
        actions = np.stack([env.action_space.sample() for env in envs])
        theirs = np.stack([env.step(action)[0] for env, action in zip(envs, actions)])
        assert np.array_equal(advance(actions), theirs)
    return run


# ----------------------------------- Epoch, growth ------------------------------------
def epoch_speed(args):
    """4: one whole epoch on HalfCheetah, and the share of each part."""
    return {f"hidden {hidden}": epoch_of_size(hidden, args.rounds) for hidden in args.hidden}


def epoch_of_size(hidden, rounds):
    psd_args, agent, buffer = make(hidden)
    envs = [psd.make_env(psd_args) for _ in range(NUM_ENVS)]
    L = 10
    skill = skills_of(L, NUM_ENVS, psd_args)
    episodes = []

    def collect():
        episodes[:] = rollout(envs, agent, skill)

    def store():
        for episode in episodes:
            store_episode(buffer, episode, L)

    def statistics():
        for episode in episodes:
            measure_episode(agent, episode, skill[0], L, psd_args)

    parts = {
        "collect": collect,
        "store": store,
        "update": partial(update, agent, buffer, psd_args),
        "statistics": statistics,
    }
    seconds = interleave(parts, rounds)
    seconds["update"] *= psd_args.updates_per_epoch
    total = sum(seconds.values())
    result = {"epoch_s": total, "steps_per_s": NUM_ENVS * psd_args.episode_length / total}
    for name, value in seconds.items():
        result[f"{name}_share"] = value / total
    return result


def growth(args):
    """5: time of an update over what is stored and over L; of collection over environments."""
    cases = {
        "1e3 stored": make(transitions=1_000),
        "1e4 stored": make(transitions=10_000),
        "5e5 stored": make(transitions=500_000),
        "L = 5": make(L=(5,)),
        "L = 50": make(L=(50,)),
    }
    functions = {}
    for name, (psd_args, agent, buffer) in cases.items():
        functions[name] = partial(update, agent, buffer, psd_args)
    seconds = interleave(functions, 2 * args.rounds)
    psd_args, agent, _ = cases["1e4 stored"]
    num_steps = 50
    for count in (8, 64):
        envs = [psd.make_env(psd_args, max_steps=num_steps) for _ in range(count)]
        skill = skills_of(10, count, psd_args)
        episode = interleave({"collect": partial(rollout, envs, agent, skill)}, 5)
        seconds[f"{count} environments, a step"] = episode["collect"] / (num_steps * count)
    result = {f"{name}, ms": 1e3 * value for name, value in seconds.items()}
    result["update_5e5_over_1e3"] = seconds["5e5 stored"] / seconds["1e3 stored"]
    result["update_L50_over_L5"] = seconds["L = 50"] / seconds["L = 5"]
    few = seconds["8 environments, a step"]
    many = seconds["64 environments, a step"]
    result["step_64_over_8"] = many / few
    return result


# --------------------------------------- Memory ---------------------------------------
def memory(args):
    """6: memory of a buffer full of Ant transitions, in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import speed; speed.fill_a_buffer()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, one_copy = [int(number) for number in done.stdout.split()]
    return {"resident_MB": held / 1e6, "one_copy_MB": one_copy / 1e6, "ratio": held / one_copy}


def fill_a_buffer(capacity=500_000, T=200, obs_dim=27, action_dim=8):
    """Prints the bytes that a full buffer takes, and those of one copy of its transitions."""
    rng = np.random.default_rng(0)
    small = make_buffer(1000, T, obs_dim, action_dim)
    store_episode(small, random_episode(rng, T, obs_dim, action_dim), 10)
    before = resident_bytes()
    buffer = make_buffer(capacity, T, obs_dim, action_dim)
    for _ in range(capacity // T + 100):  # some episodes more: the ring goes round
        store_episode(buffer, random_episode(rng, T, obs_dim, action_dim), 10)
    bytes_per_transition = 4 * obs_dim + 4 * action_dim + 4 + 1  # obs, action, velocity, end
    print(resident_bytes() - before, capacity * bytes_per_transition)


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# ---------------------------------------- Main ----------------------------------------
def show(result, indent=""):
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "    ")
        else:
            print(f"{indent}{name:<34}{value:>12.3f}")


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_args(args)
    torch.set_num_threads(args.threads)
    measure = {
        "update": update_speed,
        "collect": collect_speed,
        "epoch": epoch_speed,
        "growth": growth,
        "memory": memory,
    }
    result = {
        "command": " ".join(["python", "benchmark/speed.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {args.threads} threads",
        "torch": torch.__version__,
        "mujoco": mujoco.__version__,
        "load_before": os.getloadavg()[0],
    }
    for part in args.only or PARTS:
        result[part] = measure[part](args)
        print(f"\n{part}: {measure[part].__doc__.splitlines()[0]}")
        show(result[part], "    ")
    text = json.dumps(result, indent=2) + "\n"
    try:
        plot.write_whole(args.out, partial(Path.write_text, data=text))
    except OSError as error:
        fail(f"{args.out} cannot be written ({error.strerror}); the numbers stand above")
    print(f"\nwrote {args.out}")


if __name__ == "__main__":
    main()
