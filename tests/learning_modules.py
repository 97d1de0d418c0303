"""Small networks of the kinds that are trained on devices."""

import math

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, VOCABULARY, WIDTH, HEADS = 6, 20, 16, 4


def seeded(module):
    """Every parameter and running statistic at random: at their first values, mistakes cancel."""
    generator = torch.Generator().manual_seed(0)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            if "running_var" in name:
                value.copy_(noise.abs() + 0.5)
            elif value.ndim > 1:
                value.copy_(noise / math.sqrt(value[0].numel()))
            else:
                value.copy_(noise * 0.1 + (1 if name.endswith("weight") else 0))
    return module.eval()


def mlp():
    return seeded(nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 5)))


def cnn():
    return seeded(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 5),
        )
    )  # fmt: skip


def depthwise():
    def block(inner, outer, stride):
        return [
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU6(),
        ]  # fmt: skip

    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return seeded(nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), *block(4, 6, 1), *block(6, 8, 2), *tail))


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.short(x))


def resnet():
    stem = [nn.Conv2d(1, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return seeded(nn.Sequential(*stem, Residual(4, 4, 1), Residual(4, 8, 2), *tail))


class SqueezedBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(channels, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 5, 1, 2, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.narrow = nn.Sequential(nn.Conv2d(8, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.deep(self.wide(x))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.narrow(y * scale)


def mobilenet_v3():
    stem = [nn.Conv2d(1, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish()]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(8, 5)]
    return seeded(nn.Sequential(*stem, SqueezedBlock(4), SqueezedBlock(4), *tail))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x, bias):
        split = lambda y: y.view(*y.shape[:2], HEADS, -1).transpose(1, 2)  # noqa: E731
        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS) + bias
        x = self.first(self.dense((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)) + x)
        return self.second(self.narrow(F.gelu(self.wide(x))) + x)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.pooler = nn.Linear(WIDTH, WIDTH)  # as in published weights: there, and not used
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, ids, mask):
        kept = mask.to(torch.float32)
        bias = (1 - kept)[:, None, None] * -1e4
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x, bias)
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1e-9)
        return self.classifier(F.normalize(mean, dim=1))


def bert():
    return seeded(Bert())


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class DecoderLayer(nn.Module):
    """Rotary positions, two heads of keys for four of queries, a gated feed-forward network."""

    def __init__(self):
        super().__init__()
        half = WIDTH // 2
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, half, bias=False), nn.Linear(WIDTH, half, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)
        self.first, self.second = RmsNorm(), RmsNorm()

    def forward(self, x, cos, sin):
        size = WIDTH // HEADS
        turn = lambda y: y * cos + torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1) * sin  # noqa: E731
        y = self.first(x)
        split = lambda y: y.view(*y.shape[:2], -1, size).transpose(1, 2)  # noqa: E731
        query, key, value = turn(split(self.q_proj(y))), turn(split(self.k_proj(y))), split(self.v_proj(y))
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(2))
        self.norm = RmsNorm()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        size = WIDTH // HEADS
        turns = torch.arange(ids.shape[1])[:, None] * 100.0 ** (-torch.arange(size // 2) * 2 / size)
        turns = torch.cat([turns, turns], -1)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, turns.cos(), turns.sin())
        return self.lm_head(self.norm(x))


def llama():
    return seeded(Llama())


class TiedLlama(Llama):
    def __init__(self):
        super().__init__()
        self.lm_head.weight = self.embed.weight


class TwoHeads(nn.Module):
    """Gives a dictionary; what comes last is no head of what comes first."""

    def __init__(self):
        super().__init__()
        self.body, self.scores, self.other = nn.Conv2d(1, 6, 3), nn.Linear(6, 5), nn.Linear(6, 2)

    def forward(self, x):
        inner = F.gelu(self.body(x)).mean((2, 3))
        return {"scores": self.scores(inner), "other": self.other(inner)}


def two_heads():
    return seeded(TwoHeads())


class Frames(nn.Module):
    """Takes all frames of all samples as rows before it takes their mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(10, 32), nn.Linear(32, 6), nn.Linear(6, 5)

    def forward(self, x):
        count, frames, width = x.shape
        inner = F.relu(self.second(F.relu(self.first(x.reshape(count * frames, width)))))
        return self.last(inner.reshape(count, frames, 6).mean(1))


def frames():
    return seeded(Frames())


class Centred(nn.Module):
    """Takes the mean of its batch away: no sample is alone."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 32), nn.Linear(32, 5)

    def forward(self, x):
        inner = F.relu(self.first(x.flatten(1)))
        return self.last(inner - inner.mean(0, keepdim=True))


def centred():
    return seeded(Centred())


class SinglePrecision(nn.Module):
    """Has a constant of its own that meets float32 alone."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 5)
        self.mix = [torch.linspace(-1, 1, 64).reshape(8, 8)]

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))) @ self.mix[0])


def single_precision():
    return seeded(SinglePrecision())


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 8, 5, stride=2, padding=2), nn.Conv1d(8, 12, 3, dilation=2, groups=4)
        self.na, self.nb, self.last = nn.GroupNorm(2, 8), nn.GroupNorm(3, 12), nn.Linear(12, 5)

    def forward(self, x):
        x = F.gelu(self.na(self.a(x)))
        return self.last(F.gelu(self.nb(self.b(x)), approximate="tanh").mean(-1))


def waves():
    return seeded(Waves())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(16, 5)

    def forward(self, x, y):
        a, b = torch.tanh(self.one(x)), F.silu(self.two(y))
        return self.last(torch.cat([a * b, a - b], 1))


class Chunks(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.last = nn.Linear(12, 24), nn.Linear(8, 5)

    def forward(self, x):
        a, b, c = self.wide(x.flatten(1)).chunk(3, -1)
        d, e = self.wide(2 * x.flatten(1)).split([8, 16], -1)
        return self.last(a * torch.tanh(b) + c * d + F.glu(e))


def chunks():
    return seeded(Chunks())


def pair():
    return seeded(Pair())


def tied_llama():
    return seeded(TiedLlama())


PICTURE = ("x=1,1,12,12",)
INPUTS = {
    "mlp": ("x=1,3,4",),
    "cnn": PICTURE,
    "depthwise": PICTURE,
    "resnet": ("x=1,1,32,32",),
    "mobilenet_v3": PICTURE,
    "bert": (f"ids=1,{TOKENS}:int64", f"mask=1,{TOKENS}:int64"),
    "llama": (f"ids=1,{TOKENS}:int64",),
    "two_heads": PICTURE,
    "frames": ("x=1,5,10",),
    "centred": ("x=1,3,4",),
    "single_precision": ("x=1,3,4",),
    "waves": ("x=1,3,33",),
    "chunks": ("x=1,3,4",),
    "pair": ("x=1,6", "y=1,4"),
    "tied_llama": (f"ids=1,{TOKENS}:int64",),
}


def selu():
    return seeded(nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.SELU(), nn.Linear(8, 5)))
