"""Our reimplementation of the published loop of V-JEPA 2-AC in plain torch, with all its unneeded work.

The published code is in no package. The forward passes are the same: the whole history is read in every
step under a mask, action and pose tokens have their own product, every frame passes through the head, poses move one by
one with scipy, and every frame of a clip is encoded. A test checks it against golden data.
"""

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention


def rotate(x, positions):
    """Rotate channels in neighboring pairs, with angles laid out for two halves."""
    omega = torch.arange(x.shape[-1] // 2, dtype=x.dtype) / (x.shape[-1] / 2.0)
    freq = positions[:, None] * (1.0 / 10000**omega)
    sin, cos = freq.sin().repeat(1, 2), freq.cos().repeat(1, 2)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cos + torch.stack((-second, first), -1).flatten(-2) * sin


class Published:
    """Both networks, with published tensor names."""

    def __init__(self, tensors, heads=4, grid=4, encoder_eps=1e-5):
        self.tensors, self.heads, self.grid, self.encoder_eps = tensors, heads, grid, encoder_eps
        frames = torch.arange(64).repeat_interleave(grid * grid + 2)
        self.mask = frames[:, None] >= frames[None]

    # ---------------------------------------------------------------- layers
    def linear(self, name, x):
        return linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name, x, eps):
        return layer_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], eps)

    def qkv(self, name, x):
        return self.linear(f"{name}.attn.qkv", x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def block(self, name, x, eps, attend):
        x = x + self.linear(f"{name}.attn.proj", attend(name, self.norm(f"{name}.norm1", x, eps)))
        hidden = gelu(self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", x, eps)))
        return x + self.linear(f"{name}.mlp.fc2", hidden)

    def depth(self, prefix):
        names = (name for name in self.tensors if name.startswith(prefix))
        return 1 + max(int(name[len(prefix) :].split(".")[0]) for name in names)

    def turned(self, x, frames):
        """Rotate [rows, heads, frames * patches, size] by position and time."""
        count, part = self.grid**2, 2 * (x.shape[-1] // 3 // 2)
        ids = torch.arange(frames * count)
        places = (ids // count, ids % count // self.grid, ids % self.grid)
        parts = [rotate(one, at) for one, at in zip(x.split(part, -1), places, strict=False)]
        return torch.cat([*parts, x[..., 3 * part :]], -1)

    # ---------------------------------------------------------------- encoder
    def encode(self, clips):
        """Map [rows, 3, frames, height, width] to [rows, patches, width]."""
        weight, bias = (self.tensors[f"encoder.patch_embed.proj.{name}"] for name in ("weight", "bias"))
        x = torch.nn.functional.conv3d(clips, weight, bias, weight.shape[2:])
        frames, x = x.shape[2], x.flatten(2).transpose(1, 2)

        def attend(name, x):
            query, key, value = self.qkv(name, x)
            query, key = self.turned(query, frames), self.turned(key, frames)
            return scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)

        for layer in range(self.depth("encoder.blocks.")):
            x = self.block(f"encoder.blocks.{layer}", x, self.encoder_eps, attend)
        return self.norm("encoder.norm", x, self.encoder_eps)

    def frames(self, clip):
        """Encode each frame of [3, frames, height, width] alone, duplicated: [frames, patches, width]."""
        seen = self.encode(clip.transpose(0, 1)[:, :, None].repeat(1, 1, 2, 1, 1))
        return layer_norm(seen, seen.shape[-1:])

    # ---------------------------------------------------------------- predictor
    def predict(self, seen, actions, states):
        """Predict all next frames from [rows, frames * patches, D], and actions and poses [rows, frames, 7]."""
        frames, count = actions.shape[1], self.grid**2
        heads = [
            self.linear(f"predictor.{kind}_encoder", one) for kind, one in (("action", actions), ("state", states))
        ]
        x = self.linear("predictor.predictor_embed", seen).unflatten(1, (frames, count))
        x = torch.cat([torch.stack(heads, 2), x], 2).flatten(1, 2)
        mask = self.mask[: x.shape[1], : x.shape[1]]
        for layer in range(self.depth("predictor.predictor_blocks.")):
            x = self.block(
                f"predictor.predictor_blocks.{layer}", x, 1e-6, lambda name, x: self.attend(name, x, frames, mask)
            )
        x = x.unflatten(1, (frames, 2 + count))[:, :, 2:].flatten(1, 2)
        return self.linear("predictor.predictor_proj", self.norm("predictor.predictor_norm", x, 1e-6))

    def attend(self, name, x, frames, mask):
        x = x.unflatten(1, (frames, -1))
        heads = []
        for number in range(2):
            query, key, value = self.qkv(name, x[:, :, number])
            part = 2 * (query.shape[-1] // 3 // 2)
            when = torch.arange(frames)
            query, key = (torch.cat([rotate(one[..., :part], when), one[..., part:]], -1) for one in (query, key))
            heads.append((query, key, value))
        query, key, value = self.qkv(name, x[:, :, 2:].flatten(1, 2))
        seen = (self.turned(query, frames), self.turned(key, frames), value)
        merged = []
        for number, patches in enumerate(seen):
            apart = [one[number][:, :, :, None] for one in heads]
            merged.append(torch.cat([*apart, patches.unflatten(2, (frames, -1))], 3).flatten(2, 3))
        return scaled_dot_product_attention(*merged, attn_mask=mask).transpose(1, 2).flatten(2)

    # ---------------------------------------------------------------- rollouts and plans
    def step(self, seen, actions, poses):
        """Append one step to [rows, frames, patches, D] and to actions and poses [rows, frames, 7]."""
        last = self.predict(seen.flatten(1, 2), actions, poses)[:, -seen.shape[2] :]
        last = layer_norm(last, last.shape[-1:])
        return torch.cat([seen, last[:, None]], 1), torch.cat([poses, new_pose(poses[:, -1], actions[:, -1])], 1)

    def rollout(self, seen, actions, pose):
        """Roll out [rows, steps, 7] from [patches, D] and [rows, 7]. Returns embeddings and poses, with the start."""
        seen, poses = seen.expand(len(actions), 1, -1, -1), pose[:, None]
        for step in range(actions.shape[1]):
            seen, poses = self.step(seen, actions[:, : step + 1], poses)
        return seen, poses

    def cem(self, seen, pose, goal, noise, elites):
        """Plan with noise [rounds, steps, samples, 4]. Returns the plan, and plans, costs and mean of each round."""
        steps, samples = noise.shape[1:3]
        mean, std = torch.zeros(steps, 4), torch.tensor([0.05, 0.05, 0.05, 1.0]).repeat(steps, 1)
        rounds = []
        for drawn in noise:
            four = drawn.transpose(0, 1) * std + mean
            four = torch.cat([four[..., :3].clamp(-0.05, 0.05), four[..., 3:].clamp(-0.75, 0.75)], -1)
            plans = torch.cat([four[..., :3], torch.zeros(samples, steps, 3), four[..., 3:]], -1)
            ends = self.rollout(seen, plans, pose.expand(samples, -1))[0][:, -1]
            costs = (ends - goal).abs().mean((1, 2))
            best = four[costs.topk(elites, largest=False).indices]
            mean, std = best.mean(0) * 0.85 + mean * 0.15, best.std(0) * 0.85 + std * 0.15
            rounds.append((plans, costs, mean))
        hand = mean[:, 3:] * (mean[:, 3:].abs() >= 0.25)
        return torch.cat([mean[:, :3], torch.zeros(steps, 3), hand], 1), rounds


def new_pose(poses, actions):
    from scipy.spatial.transform import Rotation

    poses, actions = poses.numpy(), actions.numpy()
    angles = []
    for pose, action in zip(poses[:, 3:6], actions[:, 3:6], strict=True):
        turn = Rotation.from_euler("xyz", action).as_matrix() @ Rotation.from_euler("xyz", pose).as_matrix()
        angles.append(Rotation.from_matrix(turn).as_euler("xyz"))
    hand = np.clip(poses[:, 6:] + actions[:, 6:], 0, 1)
    new = np.concatenate([poses[:, :3] + actions[:, :3], np.stack(angles), hand], -1)
    return torch.from_numpy(new).to(torch.float32)[:, None]
