"""A hopping robot in pybullet, controlled by a server through openpi's own client.

Runs in its own venv: hop_openpi.py HOST PORT STEPS RATE FOLDER. The robot sends RATE requests per second; 0: as soon as
it has moved. FOLDER/hop.json gets the duration of each reply, the rewards, the distance, and the maximum difference
from the actions of the policy that pybullet publishes. FOLDER/frames.npy shows the last hop.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pybullet_envs  # noqa: F401 - must be imported before its submodules
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from pybullet_envs.gym_locomotion_envs import HopperBulletEnv

SEED = 0
MOMENTS = 8
"""Frames to draw."""
APART = 4
"""Steps between two frames. A hop takes about MOMENTS * APART steps."""
SIZE = (180, 200)


def wait_until(moment):
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def frame(env, state, torso_x):
    """Render a saved state with the software renderer of the simulator."""
    bullet, (width, height) = env._p, SIZE
    bullet.restoreState(state)
    view = bullet.computeViewMatrixFromYawPitchRoll([torso_x, 0, 0.7], 2.4, 0, -8, 0, 2)
    projection = bullet.computeProjectionMatrixFOV(45, width / height, 0.1, 30)
    pixels = bullet.getCameraImage(width, height, view, projection, renderer=bullet.ER_TINY_RENDERER)[2]
    return np.reshape(pixels, (height, width, 4))[..., :3].astype(np.uint8)


def main(host, port, steps, rate, folder):
    policy, env = WebsocketClientPolicy(host, port), HopperBulletEnv()
    published = import_module("pybullet_envs.examples.enjoy_TF_HopperBulletEnv_v0_2017may").SmallReactivePolicy(
        env.observation_space, env.action_space
    )
    env.seed(SEED)
    state = env.reset()
    reply_s, rewards, max_difference, frames_to_draw, started_at = [], [], 0.0, [], time.perf_counter()
    for step in range(steps):
        if rate:
            wait_until(started_at + step / rate)
        sent_at = time.perf_counter()
        (action,) = policy.infer({"state": state})["actions"]
        reply_s.append(time.perf_counter() - sent_at)
        max_difference = max(max_difference, float(np.abs(action - published.act(state)).max()))
        state, reward, is_down, _ = env.step(action)
        rewards.append(reward)
        left = steps - step
        if left <= MOMENTS * APART and left % APART == 0:
            frames_to_draw.append((env._p.saveState(), env.robot.body_real_xyz[0]))
        if is_down:
            break
    torso = env.robot.body_real_xyz[0]  # body_xyz is averaged with the floor
    result = {"took_s": reply_s, "rewards": rewards, "metres": torso, "apart": max_difference, "is_down": is_down}
    (folder / "hop.json").write_text(json.dumps(result))
    np.save(folder / "frames.npy", [frame(env, *moment) for moment in frames_to_draw])


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
