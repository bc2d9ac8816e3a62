"""A robot that hops in pybullet, and asks a server what to do with openpi's own client.

It runs in a venv of its own: hop_openpi.py HOST PORT STEPS RATE FOLDER. The robot asks RATE times a second, or with 0
as soon as it has moved. FOLDER/hop.json says how it went: how long each reply took, how far and how well the robot
hopped, and how far its actions were from those of the policy that pybullet publishes. FOLDER/frames.npy shows the last
hop.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pybullet_envs  # noqa: F401 - its modules find each other only after it
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from pybullet_envs.gym_locomotion_envs import HopperBulletEnv

SEED = 0
MOMENTS, APART = 8, 4
"""A hop is about as many steps as the product."""
SIZE = (180, 200)


def wait_until(moment):
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def frame(env, state, torso_x):
    """A moment, drawn by the simulator's own renderer, which needs no screen."""
    bullet, (width, height) = env._p, SIZE
    bullet.restoreState(state)
    view = bullet.computeViewMatrixFromYawPitchRoll([torso_x, 0, 0.7], 2.4, 0, -8, 0, 2)
    lens = bullet.computeProjectionMatrixFOV(45, width / height, 0.1, 30)
    pixels = bullet.getCameraImage(width, height, view, lens, renderer=bullet.ER_TINY_RENDERER)[2]
    return np.reshape(pixels, (height, width, 4))[..., :3].astype(np.uint8)


def main(host, port, steps, rate, folder):
    policy, env = WebsocketClientPolicy(host, port), HopperBulletEnv()
    published = import_module("pybullet_envs.examples.enjoy_TF_HopperBulletEnv_v0_2017may").SmallReactivePolicy(
        env.observation_space, env.action_space
    )
    env.seed(SEED)
    state = env.reset()
    took, rewards, apart, moments, begun = [], [], 0.0, [], time.perf_counter()
    for step in range(steps):
        if rate:
            wait_until(begun + step / rate)
        asked = time.perf_counter()
        (action,) = policy.infer({"state": state})["actions"]
        took.append(time.perf_counter() - asked)
        apart = max(apart, float(np.abs(action - published.act(state)).max()))
        state, reward, is_down, _ = env.step(action)
        rewards.append(reward)
        left = steps - step
        if left <= MOMENTS * APART and left % APART == 0:
            moments.append((env._p.saveState(), env.robot.body_real_xyz[0]))
        if is_down:
            break
    torso = env.robot.body_real_xyz[0]  # its body_xyz is a mean with the floor
    told = {"took_s": took, "rewards": rewards, "metres": torso, "apart": apart, "is_down": is_down}
    (folder / "hop.json").write_text(json.dumps(told))
    np.save(folder / "frames.npy", [frame(env, *moment) for moment in moments])


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
