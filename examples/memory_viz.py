#!/usr/bin/env python3
"""Turns gpupool's JSON into what https://pytorch.org/memory_viz shows (Active memory, by segment).

    GPUPOOL_REPORT=report.json ./program
    memory_viz.py report.json report.pickle         # the file's last report; or --line N, from 1

A block without a label is named by its size. A stitched block is shown where it lies, in pieces.
"""
import argparse
import json
import pickle

STATES = {"live": "active_allocated", "pending": "active_pending_free",
          "kept": "active_pending_free", "free": "inactive"}


def block(part, address):
    requested = part.get("requested", 0)
    name = part.get("label") or f"{requested} bytes"
    if part["kind"] == "kept":
        name = "kept by a graph"
    frames = [] if part["kind"] in ("free", "pending") else [
        {"name": name, "filename": "gpupool", "line": 0}]
    return {"address": address, "size": part["bytes"], "state": STATES[part["kind"]],
            "requested_size": min(part["bytes"], requested) if part["kind"] == "live" else 0,
            "frames": frames}


def segment(chunk, device):
    address, blocks = chunk["address"], []
    for part in chunk["parts"]:
        blocks.append(block(part, address))
        address += part["bytes"]
    live = [b for b in blocks if b["state"] == "active_allocated"]
    active = [b for b in blocks if b["state"] != "inactive"]
    return {"device": device, "address": chunk["address"], "total_size": chunk["bytes"],
            "allocated_size": sum(b["size"] for b in live),
            "active_size": sum(b["size"] for b in active),
            "requested_size": sum(b["requested_size"] for b in live),
            "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": [], "blocks": blocks}


def snapshot(report):
    device = report["device"]
    return {"segments": [segment(chunk, device) for chunk in report["memory"]],
            "device_traces": [[] for _ in range(device + 1)],
            "allocator_settings": {}, "external_annotations": []}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json")
    parser.add_argument("pickle")
    parser.add_argument("--line", type=int, default=0, help="which report; 0: the last")
    options = parser.parse_args()
    with open(options.json, encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    report = json.loads(lines[options.line - 1])
    with open(options.pickle, "wb") as file:
        pickle.dump(snapshot(report), file)


if __name__ == "__main__":
    main()
