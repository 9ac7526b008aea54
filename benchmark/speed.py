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

import psd  # noqa: E402

ROBOTS = ["HalfCheetah-v4", "Ant-v4", "Walker2d-v4", "Hopper-v4", "Humanoid-v4"]
PARTS = ["update", "collect", "epoch", "growth", "memory"]


@dataclass
class Args:
    only: tuple[str, ...] = ()  # parts to run (none: all)
    rounds: int = 15  # of each comparison; the median counts
    threads: int = 1  # CPU threads of torch
    hidden: tuple[int, ...] = (256, 1024)  # units of a hidden layer
    robots: tuple[str, ...] = tuple(ROBOTS)  # for collection
    out: str = "runs/speed.json"  # the JSON to write


def interleave(functions, rounds):
    """Median seconds of each function, all run once a round, after one round of warm-up."""
    times = {name: [] for name in functions}
    for i in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if i > 0:
                times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def random_episode(rng, length, obs_dim, action_dim):
    def uniform(*shape):
        return rng.uniform(-1, 1, shape).astype(np.float32)

    return psd.Episode(
        uniform(length + 1, obs_dim), uniform(length, action_dim), uniform(length), 0
    )


def skill_of(L, embed_dim=8):
    L = torch.tensor([float(L)])
    return torch.cat([L, psd.embed_period(L, embed_dim)[0]])


def make(hidden=256, obs_dim=17, action_dim=6, transitions=20_000, L=(10, 20), T=200, flags=()):
    """Arguments, agent, and a buffer of random episodes of HalfCheetah's sizes."""
    argv = ["--env-id", "HalfCheetah-v4", "--hidden-units", str(hidden), *flags]
    args, _ = psd.parse_args(argv)
    space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
    agent = psd.Agent(args, obs_dim, space, "cpu")
    buffer = psd.ReplayBuffer(args.buffer_size, T, obs_dim, action_dim, 9, "cpu")
    rng = np.random.default_rng(0)
    for i in range(max(1, transitions // T)):
        episode = random_episode(rng, min(T, transitions), obs_dim, action_dim)
        buffer.add(episode, skill_of(L[i % len(L)]))
    return args, agent, buffer


# -------------------------------------------- Updates ---------------------------------------------
def sb3_update(hidden, obs_dim, action_dim):
    """One gradient step of stable-baselines3's SAC, on the same sizes and kind of data."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

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
    return lambda: model.train(gradient_steps=1, batch_size=256)


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
    x = obs_dim + args.embed_dim
    phi, actor = [x, *hidden, args.latent_dim], [x, *hidden, 2 * action_dim]
    critic, B = [x + action_dim, *hidden, 1], args.batch_size
    encoder = multiplications(3 * args.phi_batch_size, phi)
    reward = multiplications(2 * B, phi, weights=0, inputs=0)
    sac = multiplications(B, actor, weights=0, inputs=0)  # next actions
    sac += 2 * multiplications(B, critic, weights=0, inputs=0)  # targets
    sac += 2 * multiplications(B, critic)  # critic step
    sac += multiplications(B, actor)  # actor step
    sac += 2 * multiplications(B, critic, weights=0, first_input=True)  # dQ/da
    return encoder + reward, sac


def plain_gemms(shapes):
    """The same products, alone: each shape with operands and result at hand."""
    operands = [(torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)) for m, k, n in shapes]

    def run():
        for a, b, out in operands:
            torch.mm(a, b, out=out)

    return run


def update_speed(args):
    """1 and 2: one SAC update against stable-baselines3's; one PSD update against its products."""
    result = {}
    for hidden in args.hidden:
        psd_args, agent, buffer = make(hidden)
        sac_agent, zero = make(hidden)[1], torch.zeros(psd_args.batch_size)
        sac_agent.phi = IdlePhi()

        def sac(agent=sac_agent, buffer=buffer, psd_args=psd_args, zero=zero):
            """SAC alone: the reward is given, as to stable-baselines3."""
            rewards = psd.psd_reward, psd.external_reward
            psd.psd_reward, psd.external_reward = (lambda *_: zero.clone()), (lambda *_: zero)
            psd.update(agent, buffer, psd_args, train_phi=False)
            psd.psd_reward, psd.external_reward = rewards

        of_phi, of_sac = needed_products(psd_args, 17, 6)
        functions = {
            "sac": sac,
            "sb3_sac": sb3_update(hidden, 17 + psd_args.embed_dim, 6),
            "sac_gemm": plain_gemms(of_sac),
            "psd": lambda a=agent, b=buffer, c=psd_args: psd.update(a, b, c),
            "psd_gemm": plain_gemms(of_phi + of_sac),
        }
        ms = {k: 1e3 * v for k, v in interleave(functions, args.rounds).items()}
        result[f"hidden {hidden}"] = {
            **{f"{name}_ms": value for name, value in ms.items()},
            "sac_over_sb3": ms["sb3_sac"] / ms["sac"],
            "sac_share_of_limit": ms["sac_gemm"] / ms["sac"],
            "psd_share_of_limit": ms["psd_gemm"] / ms["psd"],
        }
    return result


class IdlePhi(torch.nn.Module):
    def forward(self, obs, skill):
        return obs[..., :3]


# ------------------------------------------- Collection -------------------------------------------
def collect_speed(args):
    """3: eight episodes with the policy in the loop, against SyncVectorEnv and raw mj_step."""
    result = {}
    for env_id in args.robots:
        flags = ["--hidden-units", "256", "--env-id", env_id]
        flags += (
            [] if env_id.startswith("HalfCheetah") else ["--no-terminate"]
        )  # equal work for all
        psd_args, _ = psd.parse_args(flags)
        T, n = psd_args.episode_length, 8
        envs = [psd.make_env(psd_args) for _ in range(n)]
        obs_dim = envs[0].observation_space.shape[0]
        agent = psd.Agent(psd_args, obs_dim, envs[0].action_space, "cpu")
        state = {"obs_mean": torch.zeros(obs_dim), "obs_std": torch.ones(obs_dim)}
        skill = psd.embed_period(torch.full((n,), 10.0), psd_args.embed_dim)
        vector = gym.vector.SyncVectorEnv(
            [partial(psd.make_env, psd_args)] * n,
            autoreset_mode=gym.vector.AutoresetMode.DISABLED,
        )
        episodes = psd.rollout(envs, (0,), agent.actor, skill, state)
        controls = np.stack([e.actions for e in episodes], axis=1).astype(np.float64)  # (T, n, A)

        def ours(envs=envs, agent=agent, skill=skill, state=state):
            psd.rollout(envs, (0,), agent.actor, skill, state)

        def sync(vector=vector, agent=agent, skill=skill, T=T):
            obs, _ = vector.reset(seed=0)
            for _ in range(T):
                x = torch.as_tensor(obs, dtype=torch.float32)
                obs, *_ = vector.step(agent.actor.act(x, skill, False).numpy())

        def raw(envs=envs, controls=controls):
            cores = [env.unwrapped for env in envs]
            for env in envs:
                env.reset(seed=0)
            for row in controls:
                for core, control in zip(cores, row):
                    core.data.ctrl[:] = control
                    mujoco.mj_step(core.model, core.data, nstep=core.frame_skip)

        rounds = max(3, args.rounds // 3)
        ways = {"ours": ours, "sync_vector": sync, "raw_mj_step": raw}
        ways |= faster_ways(envs, agent, skill, T)
        seconds = interleave(ways, rounds)
        faster = {name for name in seconds if name not in ("ours", "sync_vector", "raw_mj_step")}
        result[env_id] = {
            **{f"{name}_steps_per_s": n * T / value for name, value in seconds.items()},
            "ours_over_sync_vector": seconds["sync_vector"] / seconds["ours"],
            "ours_share_of_raw": seconds["raw_mj_step"] / seconds["ours"],
            **{f"{name}_over_ours": seconds["ours"] / seconds[name] for name in sorted(faster)},
        }
        vector.close()
    return result


def faster_ways(envs, agent, skill, T):
    """What could be taken instead of Gymnasium's step; psd.py does not (docs/speed.md says why).

    threads: two threads around env.step, for MuJoCo lets go of Python's lock;
    less_python: mj_step and the environment's own _get_obs, no reward, no info, no checks;
    batch: mujoco.batch.Batch, where the observation is positions and velocities alone."""
    cores, n = [env.unwrapped for env in envs], len(envs)
    model, frame_skip = cores[0].model, cores[0].frame_skip
    obs_dim, skip = envs[0].observation_space.shape[0], 2 if model.jnt_type[0] == 0 else 1
    pool = ThreadPoolExecutor(2)

    def policy(obs):
        return agent.actor.act(torch.as_tensor(obs, dtype=torch.float32), skill, False).numpy()

    def threads():
        obs = np.stack([env.reset(seed=0)[0] for env in envs])
        for _ in range(T):
            results = pool.map(lambda pair: pair[0].step(pair[1]), zip(envs, policy(obs)))
            obs = np.stack([result[0] for result in results])

    def less_python():
        obs = np.stack([env.reset(seed=0)[0] for env in envs])
        for _ in range(T):
            for i, (core, action) in enumerate(zip(cores, policy(obs))):
                core.data.ctrl[:] = action
                mujoco.mj_step(model, core.data, nstep=frame_skip)
                obs[i] = core._get_obs()

    ways = {"threads": threads, "less_python": less_python}
    if obs_dim == model.nq + model.nv - skip:
        batch = mujoco.batch.Batch(model, n, nthread=1)
        limit = 10.0 if "Hopper" in envs[0].spec.id or "Walker" in envs[0].spec.id else np.inf

        def observe():
            return np.concatenate([batch.qpos[:, skip:], batch.qvel.clip(-limit, limit)], axis=1)

        def start(seed):
            batch.reset(stage=0)
            for i, env in enumerate(envs):
                env.reset(seed=seed)
                batch.qpos[i], batch.qvel[i] = cores[i].data.qpos, cores[i].data.qvel
            batch.forward()

        def advance(actions):
            batch.ctrl[:] = actions
            batch.step(nstep=frame_skip)
            return observe()

        start(1)  # the same bits as Gymnasium, or it is no alternative
        for _ in range(50):
            actions = np.stack([env.action_space.sample() for env in envs])
            theirs = np.stack([env.step(action)[0] for env, action in zip(envs, actions)])
            assert np.array_equal(advance(actions), theirs)

        def batched():
            start(0)
            obs = observe()
            for _ in range(T):
                obs = advance(policy(obs))

        ways["batch"] = batched
    return ways


# ----------------------------------------- Epoch, growth ------------------------------------------
def epoch_speed(args):
    """4: one whole epoch on HalfCheetah, and the share of each part."""
    result = {}
    for hidden in args.hidden:
        psd_args, agent, buffer = make(hidden)
        envs = [psd.make_env(psd_args) for _ in range(8)]
        state = {"obs_mean": torch.zeros(17), "obs_std": torch.ones(17)}
        skill = psd.embed_period(torch.full((8,), 10.0), psd_args.embed_dim)
        episodes = []

        def collect(envs=envs, agent=agent, skill=skill, state=state, episodes=episodes):
            episodes[:] = psd.rollout(envs, (0,), agent.actor, skill, state)

        def store(buffer=buffer, episodes=episodes):
            for episode in episodes:
                buffer.add(episode, skill_of(10))

        def measure(agent=agent, psd_args=psd_args, skill=skill, episodes=episodes):
            for episode in episodes:
                latents = psd.encode(agent, episode, skill[0])
                psd.latent_statistics(latents, 10, psd_args.kappa)

        def one_update(agent=agent, buffer=buffer, psd_args=psd_args):
            psd.update(agent, buffer, psd_args)

        parts = {"collect": collect, "store": store, "update": one_update, "statistics": measure}
        seconds = interleave(parts, args.rounds)
        seconds["update"] *= psd_args.updates_per_epoch
        total = sum(seconds.values())
        result[f"hidden {hidden}"] = {
            "epoch_s": total,
            "steps_per_s": 8 * psd_args.episode_length / total,
            **{f"{name}_share": value / total for name, value in seconds.items()},
        }
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
    functions = {
        name: lambda case=case: psd.update(case[1], case[2], case[0])
        for name, case in cases.items()
    }
    seconds = interleave(functions, 2 * args.rounds)
    psd_args, agent, _ = cases["1e4 stored"]
    state = {"obs_mean": torch.zeros(17), "obs_std": torch.ones(17)}
    for n in (8, 64):
        envs = [psd.make_env(psd_args, max_steps=50) for _ in range(n)]
        skill = psd.embed_period(torch.full((n,), 10.0), psd_args.embed_dim)

        def collect(envs=envs, skill=skill):
            psd.rollout(envs, (0,), agent.actor, skill, state)

        seconds |= interleave({f"{n} environments, a step": collect}, 5)
        seconds[f"{n} environments, a step"] /= 50 * n
    return {
        **{f"{name}, ms": 1e3 * value for name, value in seconds.items()},
        "update_5e5_over_1e3": seconds["5e5 stored"] / seconds["1e3 stored"],
        "update_L50_over_L5": seconds["L = 50"] / seconds["L = 5"],
        "step_64_over_8": seconds["64 environments, a step"] / seconds["8 environments, a step"],
    }


def memory(args):
    """6: memory of a buffer full of Ant transitions, in a process of its own."""
    code = f"""
import sys, resource; sys.path.insert(0, {str(HERE)!r}); sys.path.insert(0, {str(HERE.parent)!r})
import numpy as np, torch, psd, speed
def resident(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
rng = np.random.default_rng(0)
small = psd.ReplayBuffer(1000, 200, 27, 8, 9, "cpu")
small.add(speed.random_episode(rng, 200, 27, 8), torch.ones(9))
before = resident()
buffer = psd.ReplayBuffer(500_000, 200, 27, 8, 9, "cpu")
for _ in range(2600):
    buffer.add(speed.random_episode(rng, 200, 27, 8), torch.ones(9))
print(resident() - before, 500_000 * (4 * 27 + 4 * 8 + 4 + 1))
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    held, one_copy = map(int, output.stdout.split())
    return {"resident_MB": held / 1e6, "one_copy_MB": one_copy / 1e6, "ratio": held / one_copy}


# ---------------------------------------------- Main ----------------------------------------------
def show(result, indent=""):
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "    ")
        else:
            print(f"{indent}{name:<34}{value:>12.3f}")


def main():
    args = tyro.cli(Args, description=__doc__)
    unknown = [part for part in args.only if part not in PARTS]
    if unknown:
        raise SystemExit(f"speed.py: error: no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    torch.set_num_threads(args.threads)
    run = dict(update=update_speed, collect=collect_speed, epoch=epoch_speed, growth=growth)
    run["memory"] = memory
    result = {
        "command": " ".join(["python", "benchmark/speed.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {args.threads} threads",
        "torch": torch.__version__,
        "mujoco": mujoco.__version__,
        "load_before": os.getloadavg()[0],
    }
    for part in args.only or PARTS:
        result[part] = run[part](args)
        print(f"\n{part}: {run[part].__doc__.splitlines()[0]}")
        show(result[part], "    ")
    path = Path(args.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
