"""Does a captured training step of PyTorch (torch.cuda.graph) work on gpupool?

    python3 pytorch_graphs.py [--steps 1000]

What to look at: after equally many steps the captured model has the weights of a model that was
trained without a graph. Tensors that live beside the replays keep their contents, because nobody
else gets the graph's memory. All memory comes back when the graph and its tensors are gone, even if
a tensor lives longer than its graph.
"""

import argparse
import gc
import sys
import time

import torch
from torch import nn

import pytorch_allocator

WARM = 3  # steps before the capture, on a side stream, as PyTorch asks for


class Bystanders:
    """Tensors beside the replays, of all sizes, each filled with a number, checked at its end."""

    def __init__(self):
        self.live = []
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def come_and_go(self, number):
        self.live.append((number, torch.full((1 << (10 + number % 13),), number, device="cuda")))
        if len(self.live) > 16:
            expected, tensor = self.live.pop(0)
            self.wrong += (tensor != expected).sum()


class Training:
    def __init__(self, steps):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.data = torch.randn(steps, 64, 512, device="cuda")
        self.batch = self.data[0].clone()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(self.batch) - self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def warm_up(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.step()
        torch.cuda.current_stream().wait_stream(side)

    def run(self, step, bystanders):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number, batch in enumerate(self.data):
            self.batch.copy_(batch)
            step()
            bystanders.come_and_go(number)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / len(self.data)

    def weights(self):
        return torch.cat([weight.detach().flatten() for weight in self.model.parameters()])


def without_a_graph(steps, bystanders):
    training = Training(steps)
    training.warm_up()
    return training.run(training.step, bystanders), training.weights()


def captured(steps, bystanders):
    """Returns what a graph leaves behind, too: the loss, a tensor in the graph's memory."""
    training = Training(steps)
    training.warm_up()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
    return training.run(graph.replay, bystanders), training.weights(), loss


def reserved():
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch keeps one for each stream, the graph's too
    torch.cuda.empty_cache()
    return pytorch_allocator.memory()["reserved"] / 2**20


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--steps", type=int, default=1000)
    steps = ask.parse_args().steps
    pytorch_allocator.install()
    bystanders = Bystanders()
    eager_us, expected = without_a_graph(steps, bystanders)
    before = reserved()
    replay_us, weights, loss = captured(steps, bystanders)
    last = loss.item()
    print(f"{steps} steps: {eager_us:.0f} us each without a graph, {replay_us:.0f} us replayed")
    print(f"largest difference of a weight: {(weights - expected).abs().max().item():.1e}")
    print(f"wrong numbers in tensors beside the replays: {bystanders.wrong.item()}")
    if not torch.allclose(weights, expected, rtol=1e-3, atol=1e-5):
        sys.exit("the graph has trained something else")
    others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(32)]
    kept = loss.item()  # the graph is gone, its tensor is not
    del others, loss, weights
    after = reserved()
    print(f"reserved before the graph {before:.0f} MiB, after it {after:.0f} MiB")
    if bystanders.wrong.item() or kept != last:
        sys.exit("memory of the graph was somebody else's, too")
    if after > before + 16:
        sys.exit("the graph's memory did not come back")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    main()
