"""What report_test.sh asks of the files in a folder: report_check.py CHECK FOLDER."""
import ast
import json
import pickle
import sys
import xml.etree.ElementTree as tree

FOLDER = sys.argv[2]


def report():
    with open(FOLDER + "/map.json", encoding="utf-8") as file:
        return json.loads(file.readline())


def picture():
    root = tree.parse(FOLDER + "/map.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{*}title")) > 50


def snapshot():
    with open(FOLDER + "/map.pickle", "rb") as file:
        segments = pickle.load(file)["segments"]
    assert sum(s["total_size"] for s in segments) == report()["reserved"] > 0
    assert sum(s["allocated_size"] for s in segments) == report()["allocated"] > 0
    for s in segments:
        assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
        address = s["address"]
        for b in s["blocks"]:
            assert b["address"] == address
            address += b["size"]
    names = {f["name"] for s in segments for b in s["blocks"] for f in b["frames"]}
    assert "weights" in names, names


def words():
    """Of gpupool_stats, in their order: what the adaptor reads by number."""
    with open("examples/pytorch_allocator.py", encoding="utf-8") as file:
        for line in ast.parse(file.read()).body:
            if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "WORDS":
                names = line.value.func.value.value.split()
    assert [word for word in report() if word in names] == names and len(names) == 24
    assert [names.index(word) for word in ("reserved", "pending", "limit")] == [4, 6, 12]


def labels():
    with open(FOLDER + "/labels.json", encoding="utf-8") as file:
        lines = file.read().split("\n")
    assert len(lines) == 2001 and not lines[-1]
    for line in lines[:-1]:
        chunks = json.loads(line)["memory"]
        assert any("label" in part for chunk in chunks for part in chunk["parts"])


{"picture": picture, "snapshot": snapshot, "words": words, "labels": labels}[sys.argv[1]]()
