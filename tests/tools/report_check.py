"""Reads what gpupool_write_json, _svg and _snapshot made of one arena, and compares them.

report_check.py FILE.json FILE.svg FILE.pickle FILE.stats: silent when all agree, else an
AssertionError. FILE.stats: gpupool_stats without its first member."""
import json
import pickle
import pickletools
import re
import struct
import sys
import xml.etree.ElementTree as ElementTree

VIEWER = {  # the opcodes that pytorch.org/memory_viz reads
    "PROTO", "FRAME", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEM", "SETITEMS",
    "APPEND", "APPENDS", "BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT",
    "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE", "STOP", "LIST", "DICT"}
SEGMENT = {  # the fields of torch.cuda.memory._snapshot()
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
    "is_expandable": bool, "frames": list, "blocks": list}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
FRAME = {"filename": str, "line": int, "name": str}
STATES = {"live": "active_allocated", "free": "inactive", "pending": "active_pending_free"}


def count_blocks(live):
    """A stitched block is shown at each of its home runs, with its address."""
    return len({b.get("stitched_at", b["address"]) for b in live})


def check_json(arena):
    """The laws, and that the parts add up to the whole."""
    counters, blocks = arena["counters"], []
    for name, counter in counters.items():
        assert counter["now"] <= counter["peak"] <= counter["total"], name
    now = {name: counter["now"] for name, counter in counters.items()}
    assert now["requested"] <= now["granted"] <= now["reserved"]
    at = 0
    for chunk in arena["chunks"]:
        assert at <= chunk["address"]
        at = chunk["address"]
        for block in chunk["blocks"]:
            assert block["address"] == at
            at += block["bytes"]
        assert at == chunk["address"] + chunk["bytes"]
        blocks += chunk["blocks"]
    live = [b for b in blocks if b["state"] == "live"]
    assert sum(b["requested_bytes"] for b in live) == now["requested"]
    assert sum(b["bytes"] for b in live) == now["granted"]
    assert count_blocks(live) == now["blocks"] == sum(arena["live_by_order"])
    assert sum(b["bytes"] for b in live if "stitched_at" in b) == arena["stitched_bytes"]
    assert not any("stitched_at" in b for b in blocks if b["state"] != "live")
    free = [b for b in blocks if b["state"] != "live"]
    assert sum(b["bytes"] for b in free) == arena["free_bytes"]
    pending = [b for b in free if b["state"] == "pending"]
    assert sum(b["bytes"] for b in pending) == now["pending"]
    assert not pending or any(b["stream"] is not None for b in pending)
    assert max(b["bytes"] for b in free) >= arena["largest_free_bytes"] > 0
    assert arena["largest_free_bytes"] <= arena["largest_block_bytes"] <= arena["free_bytes"]
    assert arena["counts"]["allocs"] - arena["counts"]["frees"] == now["blocks"]
    assert all(b["stream"] is None or b["stream"] < len(arena["streams"]) for b in blocks)
    assert all(b["stream"] is not None for b in live)
    for index, site in enumerate(arena.get("sites", [])):
        mine = [b for b in live if b["site"] == index]
        assert site["blocks"] == count_blocks(mine)
        assert site["bytes"] == sum(b["requested_bytes"] for b in mine)
        assert all(b["stream"] == site["stream"] for b in live if b["site"] == index)
        assert site["bytes"] <= site["bytes_peak"]


def check_stats(path, arena):
    """All that gpupool_get_stats says, in the order of its struct."""
    with open(path, "rb") as file:
        figures = [number for number, in struct.iter_unpack("=Q", file.read())]
    shown = [arena["counters"][name][which] for name in
             ("requested", "granted", "reserved", "pending", "blocks")
             for which in ("now", "peak", "total")]
    shown += [arena["counts"][name] for name in
              ("allocs", "frees", "failures", "same_stream_allocs", "splits", "merges",
               "chunks_gained", "chunks_lost", "stitches", "stitches_reused", "fence_waits",
               "host_syncs")]
    shown += [arena["limit_bytes"] or 0]
    shown += [arena[name] for name in ("largest_free_bytes", "largest_block_bytes",
                                       "stitched_bytes", "asleep_bytes", "backup_bytes",
                                       "host_bytes")]
    assert shown + arena["live_by_order"] + arena["free_by_order"] == figures
    free, total, others = (arena[name] for name in
                           ("device_free_bytes", "device_total_bytes", "others_bytes"))
    assert (free is None) == (total is None) == (others is None) == (arena["source"] == "pinned")
    assert free is None or 0 < free < total and others <= total - free


def longest_batch(data):
    """The most items that go into a list or dictionary at once: the viewer's stack is small."""
    counts, longest = [0], 0
    for op, _, _ in pickletools.genops(data):
        if op.name == "MARK":
            counts.append(0)
        elif op.name in ("APPENDS", "SETITEMS"):
            longest = max(longest, counts.pop())
        elif op.name == "TUPLE2":
            counts[-1] -= 1
        elif op.name not in ("PROTO", "STOP"):
            counts[-1] += 1
    return longest


def has(fields, thing):
    assert set(thing) == set(fields)
    for name, kind in fields.items():
        assert type(thing[name]) is kind, (name, thing[name])


def check_snapshot(path, arena):
    with open(path, "rb") as file:
        data = file.read()
    used = {op.name for op, _, _ in pickletools.genops(data)}
    assert used <= VIEWER, used - VIEWER
    assert longest_batch(data) <= 1000
    snapshot = pickle.loads(data)
    assert {"segments", "device_traces", "allocator_settings"} <= set(snapshot)
    assert len(snapshot["device_traces"]) == arena["device"] + 1
    settings = snapshot["allocator_settings"]
    assert settings["expandable_segments"] == (arena["source"] == "mapped")
    assert settings["limit_bytes"] == (arena["limit_bytes"] or 0)
    assert set(settings) == {"PYTORCH_CUDA_ALLOC_CONF", "allocator", "limit_bytes",
                             "expandable_segments"}
    assert len(snapshot["segments"]) == len(arena["chunks"])
    for segment, chunk in zip(snapshot["segments"], arena["chunks"]):
        has(SEGMENT, segment)
        assert (segment["segment_pool_id"], segment["device"]) == ((0, 0), arena["device"])
        assert segment["stream"] == 0
        assert segment["is_expandable"] == (arena["source"] == "mapped")
        assert segment["segment_type"] in ("small", "large")
        assert (segment["address"], segment["total_size"]) == (chunk["address"], chunk["bytes"])
        assert len(segment["blocks"]) == len(chunk["blocks"])
        sizes = {state: 0 for state in STATES.values()}
        for shown, block in zip(segment["blocks"], chunk["blocks"]):
            has(BLOCK, shown)
            assert (shown["address"], shown["size"]) == (block["address"], block["bytes"])
            assert shown["requested_size"] == block.get("requested_bytes", block["bytes"])
            assert shown["state"] == STATES[block["state"]]
            sizes[shown["state"]] += shown["size"]
            for frame in shown["frames"]:
                has(FRAME, frame)
                site = arena["sites"][block["site"]]
                assert (frame["filename"], frame["line"]) == (site["file"], site["line"])
        assert segment["allocated_size"] == sizes["active_allocated"]
        assert segment["requested_size"] == sum(b.get("requested_bytes", 0)
                                                for b in chunk["blocks"])
        assert segment["active_size"] == segment["total_size"] - sizes["inactive"]


def check_bar(bar, arena):
    """Live, freed, free: one after the other, each as wide as its share of the limit."""
    now = {name: counter["now"] for name, counter in arena["counters"].items()}
    parts = (now["granted"], now["pending"], arena["free_bytes"] - now["pending"])
    whole, at = max(arena["limit_bytes"] or 0, now["reserved"]), 16
    assert len(bar) == len(parts)
    for (x, width), part in zip(bar, parts):
        assert abs(x - at) < 0.05 and abs(width - 1136 * part / whole) < 0.05
        at += width


def check_rows(root, space, chunks):
    """In rows nothing lies over another, and between chunks there is a gap or the row ends. Each
    row has its label: the chunk, or how far into it; the legend stands above them all."""
    rects = [r for r in root.iter(space + "rect") if r.get("y")]
    titled = [(float(r.get("y")), float(r.get("x")), float(r.get("width")),
               r.find(space + "title").text) for r in rects if r.find(space + "title") is not None]
    rows, before = {rect[0] for rect in titled}, (0, 0, 0, "")
    firsts = tuple("at %#x%s" % (chunk["address"], end) for chunk in chunks for end in ",\n")
    for rect in sorted(titled):
        if rect[0] == before[0]:
            gap = rect[1] - before[1] - before[2]
            assert gap > (7.9 if any(first in rect[3] + "\n" for first in firsts) else -0.02)
        before = rect
    labels = {float(t.get("y")) - 10: t.text for t in root.iter(space + "text")
              if t.get("text-anchor") == "end"}
    assert rows == set(labels)
    assert labels[min(rows)] == "chunk 1"
    assert all(words.startswith(("chunk ", "+ ")) for words in labels.values())
    said = {t.text for t in root.iter(space + "text")}
    assert said >= {"live (any stream)", "free", "freed, perhaps still in use"}
    legend = [float(r.get("y")) for r in rects if r.get("width") == "14.00" and r.get("stroke")]
    assert len(legend) > 3 and min(legend) > 60 and max(legend) + 12 < min(rows)


def check_title(title, stretches):
    """Of one stretch: what it is, how large, and where."""
    words = {"live": "live", "free": "free", "freed, perhaps still in use": "pending"}
    what, size, at = re.fullmatch(r"(.+?): .+ \(([0-9,]+) bytes\) at (0x[0-9a-f]+).*",
                                  title).groups()
    state, size_bytes = stretches[int(at, 16)]
    assert (words[what], int(size.replace(",", ""))) == (state, size_bytes), title


def check_picture(path, arena):
    """Well-formed, nothing outside it, and a title for every block that is wide enough for one."""
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(root.get("width")), float(root.get("height"))
    titles, bar = 0, []
    stretches = {block["address"]: (block["state"], block.get("requested_bytes", block["bytes"]))
                 for chunk in arena["chunks"] for block in chunk["blocks"]}
    check_rows(root, space, arena["chunks"])
    patterns = {"url(#%s)" % pattern.get("id") for pattern in root.iter(space + "pattern")}
    fills = {rect.get("fill") for rect in root.iter(space + "rect")}
    assert all(fill in patterns for fill in fills if fill.startswith("url"))
    for rect in root.iter(space + "rect"):
        if rect.get("width").endswith("%"):
            continue
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert 0 <= x and x + float(rect.get("width")) <= width + 0.02
        assert 0 <= y and y + float(rect.get("height")) <= height
        title = rect.find(space + "title")
        if title is not None:
            titles += 1
            hatched = rect.get("fill") in patterns
            if "stretches" not in title.text:
                assert hatched == title.text.startswith("freed")
                check_title(title.text, stretches)
        if y == 48 and rect.get("fill") != "none":
            bar.append((x, float(rect.get("width"))))
    check_bar(bar, arena)
    text = " ".join("".join(t.itertext()) for t in root.iter(space + "text"))
    assert arena["name"] in text and "live" in text and "free" in text
    live = arena["counters"]["blocks"]["now"]
    assert f" in {live:,} block{'s' * (live != 1)}, " in text
    blocks = sum(len(chunk["blocks"]) for chunk in arena["chunks"])
    assert 0 < titles <= 40000 and (titles >= blocks or blocks > 2000)


with open(sys.argv[1], encoding="utf-8") as json_file:
    the_arena = json.load(json_file)
check_json(the_arena)
check_stats(sys.argv[4], the_arena)
check_picture(sys.argv[2], the_arena)
check_snapshot(sys.argv[3], the_arena)
