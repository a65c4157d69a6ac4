#!/usr/bin/env python3
"""Turns gpupool's JSON into what https://pytorch.org/memory_viz shows (Active memory, by segment).

    GPUPOOL_REPORT=report.json ./program
    memory_viz.py report.json report.pickle    # the file's last report; or add its number, from 1

A block without a label is named by its size. A stitched block is shown where it lies, in pieces.
"""
import json
import pickle
import sys

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
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    which = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with open(sys.argv[2], "wb") as file:
        pickle.dump(snapshot(json.loads(lines[which - 1])), file)


if __name__ == "__main__":
    main()
