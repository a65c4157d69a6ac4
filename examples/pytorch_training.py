"""Does training on gpupool give the same losses, and what does it save?

    python3 pytorch_training.py [--steps 200] [--loops resnet,prefetch,transformer]

Each loop runs on PyTorch's own allocator and on gpupool, each in a process of its own. ResNet-50's
images come from forked DataLoader workers, in `prefetch` through another stream; the transformer's
batches vary in size.
What to look at: the losses are equal bit for bit; reserved memory, over what was requested at most
and over what was reserved after ten steps; and the time of a step.
"""

import argparse
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import time
import warnings

import torch
from torch import nn

WARM = 10  # steps before the clock starts

class Images(torch.utils.data.IterableDataset):
    def __iter__(self):  # in a worker process
        for index in range(1 << 30):
            yield torch.full((3, 224, 224), (index % 97) / 97), index % 1000


def image_model():
    """ResNet-50, or a few layers where there is no torchvision."""
    try:
        import torchvision
        return torchvision.models.resnet50()
    except ImportError:
        sizes = ((3, 64), (64, 128), (128, 256), (256, 1000))
        layers = [nn.Conv2d(*size, 3, 2, 1) for size in sizes] + [nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten())


def resnet(steps, copies=None, batch=32):
    model = image_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(Images(), batch, num_workers=4, pin_memory=True,
                                         multiprocessing_context="fork")
    for images, labels in itertools.islice(loader, steps):
        with torch.cuda.stream(copies):
            images, labels = (t.cuda(non_blocking=True) for t in (images, labels))
        if copies:
            torch.cuda.current_stream().wait_stream(copies)
            for tensor in (images, labels):
                tensor.record_stream(torch.cuda.current_stream())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


class Transformer(nn.Module):
    def __init__(self, words=8192, width=512, layers=6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        return self.out(self.layers(self.words(text), mask=mask))


def transformer(steps):
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    shape = random.Random(2)
    for step in range(steps):  # the largest comes first
        batch, length = (shape.randint(2, 12), shape.randint(32, 768)) if step else (12, 768)
        text = torch.randint(8192, (batch, length + 1)).cuda()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = model(text[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def peaks(gpupool):
    if gpupool:
        bytes_of = gpupool.memory()
        return bytes_of["requested_peak"], bytes_of["reserved_peak"]
    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"], stats["reserved_bytes.all.peak"]


def train(allocator, loop, steps):
    gpupool = None
    if allocator == "gpupool":
        import pytorch_allocator as gpupool
        gpupool.install()
    torch.manual_seed(1)
    warnings.simplefilter("ignore")  # of operations that are not deterministic in every shape
    torch.use_deterministic_algorithms(True, warn_only=True)
    losses, warm_reserved = [], 0
    prefetch = torch.cuda.Stream() if loop == "prefetch" else None
    for loss in transformer(steps) if loop == "transformer" else resnet(steps, prefetch):
        losses.append(struct.pack(">f", loss.item()).hex())
        if len(losses) == WARM:
            warm_reserved, start = peaks(gpupool)[1], time.perf_counter()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return dict(zip(("requested", "reserved"), peaks(gpupool)), losses=losses, warm=warm_reserved,
                ms=seconds * 1e3 / (steps - WARM))


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--steps", type=int, default=200)
    ask.add_argument("--loops", default="resnet,prefetch,transformer")
    ask.add_argument("--allocators", default="native,gpupool")
    ask.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    told = ask.parse_args()
    if told.steps <= WARM:
        ask.error(f"--steps: more than {WARM}")
    if told.train:
        return print(json.dumps(train(*told.train, told.steps)))
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    print("loop         allocator  requested   reserved   ratio  after 10   ms/step  losses")
    for loop in told.loops.split(","):
        first = None
        for allocator in told.allocators.split(","):
            command = [sys.executable, os.path.abspath(__file__), "--steps", str(told.steps)]
            ran = subprocess.run(command + ["--train", allocator, loop], env=environment,
                                 stdout=subprocess.PIPE, text=True, check=True)
            got = json.loads(ran.stdout.splitlines()[-1])
            first = first or got
            same = "equal" if got["losses"] == first["losses"] else "DIFFERENT"
            print(f"{loop:12} {allocator:9} {got['requested'] / 2**20:7.0f} MiB "
                  f"{got['reserved'] / 2**20:6.0f} MiB  {got['reserved'] / got['requested']:6.3f} "
                  f"{got['warm'] / 2**20:5.0f} MiB  {got['ms']:8.2f}  {same}", flush=True)
            if same == "DIFFERENT":
                sys.exit("the losses of the two allocators differ")


if __name__ == "__main__":
    main()
