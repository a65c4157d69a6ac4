"""Cuts mutants into gpupool.h: one header that holds them all, each asleep behind MUTANT(n).

clang says where the expressions are (its syntax tree as JSON); the text is changed in place, so the
lines of the header keep their numbers. What stands in a macro's argument is left alone: asserts.
What was cut is kept in a file: a machine without clang takes it from there."""
import collections
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

Mutant = collections.namedtuple("Mutant", "number room function kind line old new")
Edit = collections.namedtuple("Edit", "begin end number new")  # new: what its mutant has there

TWIN = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
        "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<",
        "&": "|", "|": "&", "^": "&", "&&": "||", "||": "&&",
        "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|=",
        "<<=": ">>=", ">>=": "<<=", "++": "--", "--": "++"}
KIND = {"<": "comparison", ">": "comparison", "=": "comparison", "!": "comparison",
        "&&": "logical", "||": "logical"}
EXPRESSIONS = ("CallExpr", "BinaryOperator", "CompoundAssignOperator", "UnaryOperator")


def plain(text):
    """One line, without comments."""
    return " ".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.S).split())


def kind_of(operator):
    if operator in KIND:
        return KIND[operator]
    if operator in ("<=", ">=", "==", "!="):
        return "comparison"
    return "arithmetic"


def reads(text, target):
    """Not where another name ends or begins like it."""
    return re.search(r"(?<![\w.>])" + re.escape(target) + r"(?!\w)", text)


class Cutter:
    def __init__(self, path):
        self.path = path
        self.bytes = open(path, "rb").read()
        self.text = self.bytes.decode("ascii")
        self.mutants, self.edits = [], []
        self.statements, self.leaps, self.truths = set(), set(), set()  # spans
        self.file = ""
        self.rooms = [(m.start(), m.group(1)) for m in
                      re.finditer(r"^/\* == ([A-Z]+) =", self.text, re.M)]

    # ---- where a node is ----

    def follow(self, place):
        """The tree names a file only where it changes, in the order of printing."""
        for key, value in place.items():
            if isinstance(value, dict) and key != "includedFrom":
                self.follow(value)
            elif key == "file":
                self.file = value

    def offset(self, place):
        """(first character, character after the token, whether a macro's)"""
        macro = "expansionLoc" in place
        place = place.get("expansionLoc", place)
        if "offset" not in place:
            return None
        begin, end = place["offset"], place["offset"] + place["tokLen"]
        if macro and self.text[end:end + 1] == "(":
            depth = 0
            while True:
                depth += {"(": 1, ")": -1}.get(self.text[end], 0)
                end += 1
                if depth == 0:
                    break
        return begin, end, macro

    def span(self, node):
        """(begin, end), or None where a macro hides the node."""
        begin = self.offset(node["range"]["begin"])
        end = self.offset(node["range"]["end"])
        if not begin or not end or (begin[2] and end[2] and begin[0] == end[0]):
            return None
        return begin[0], end[1]

    def source(self, node):
        begin, end = node["span"]
        return self.text[begin:end]

    # ---- making mutants ----

    def add(self, kind, parts, old, new):
        """parts: [(begin, end, text)]; all change at once."""
        if any("\n#" in self.text[begin:end] for begin, end, _ in parts):
            return
        number = len(self.mutants) + 1
        at = parts[0][0]
        room = [name for start, name in self.rooms if start < at][-1]
        self.mutants.append(Mutant(number, room, self.function, kind,
                                   self.text.count("\n", 0, at) + 1, plain(old), plain(new)))
        for begin, end, text in parts:
            self.edits.append(Edit(begin, end, number, plain(text)))

    def replace(self, kind, node, new):
        self.add(kind, [(*node["span"], new)], self.source(node), new)

    def operator(self, node):
        left, right = node["inner"]
        if not left.get("span") or not right.get("span"):
            return
        operator = node["opcode"]
        if operator not in TWIN:
            return
        pointers = ["*" in child["type"]["qualType"] for child in (left, right)]
        if operator in ("+", "-") and pointers[1]:
            return
        a, b = left["span"][1], right["span"][0]
        between = self.text[a:b]
        blank = re.sub(r"/\*.*?\*/", lambda m: " " * len(m.group()), between, flags=re.S)
        at = blank.find(operator)
        if at < 0:
            return
        new = (self.text[node["span"][0]:a] + between[:at] + TWIN[operator] +
               between[at + len(operator):] + self.text[b:node["span"][1]])
        self.replace(kind_of(operator), node, new)

    def unary(self, node):
        operand = node["inner"][0]
        if not operand.get("span"):
            return
        text = self.source(operand)
        if node["opcode"] == "!":
            self.replace("logical", node, f"!!({text})")
        elif node["opcode"] == "~":
            self.replace("arithmetic", node, text)
        elif node["opcode"] in ("++", "--"):
            twin = TWIN[node["opcode"]]
            self.replace("arithmetic", node, text + twin if node["isPostfix"] else twin + text)

    def literal(self, node, of):
        parts = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)", self.source(node))
        if not parts:
            return
        value = int(parts[1], 0)
        others = ([value - 1] if value else []) + [value + 1]
        if value == 1 and (of.get("kind") in ("ReturnStmt", "VarDecl", "ConditionalOperator")
                           or of.get("opcode") == "="):
            others.pop()  # as true as 1, or as positive
        for other in others:
            self.replace("constant", node, f"{other}{parts[2]}")

    def condition(self, node):
        if node.get("span"):
            self.replace("condition", node, f"!({self.source(node)})")
            self.truths.add(node["span"])

    def answer(self, node):
        """return E"""
        if not node.get("inner") or not node["inner"][0].get("span"):
            return
        value = node["inner"][0]
        kind, text = value["type"]["qualType"], self.source(value)
        if self.returns == "int":
            self.replace("return", value, f"!({text})")
        elif "gpupool_result" in self.returns and text not in ("GPUPOOL_OK", "gpi_host_ok()"):
            self.replace("return", value, f"(({text}), GPUPOOL_OK)")
        elif "*" in self.returns and "*" in kind and text != "NULL":
            self.replace("return", value, f"(({text}), ({self.returns})0)")

    def statement(self, node):
        if not node.get("span"):
            return
        if node["kind"] in EXPRESSIONS:
            self.replace("deletion", node, "(void)0")
            self.statements.add(node["span"])
        elif node["kind"] in ("BreakStmt", "ContinueStmt"):
            self.leap(node)
        elif node["kind"] == "ReturnStmt" and not node.get("inner"):
            self.leap(node)

    def leap(self, node):
        self.replace("deletion", node, "")
        self.leaps.add(node["span"])

    def pairs(self, statements):
        """Neighbours of which one assigns what the other reads, in the other order."""
        for one, two in zip(statements, statements[1:]):
            if not all(n.get("span") and n["kind"] == "BinaryOperator" and n["opcode"] == "="
                       and n["inner"][0].get("span") for n in (one, two)):
                continue
            texts = [self.source(one), self.source(two)]
            targets = [self.source(n["inner"][0]) for n in (one, two)]
            if "#" in self.text[one["span"][1]:two["span"][0]]:
                continue
            if reads(texts[1], targets[0]) or reads(texts[0], targets[1]):
                self.add("swap", [(*one["span"], texts[1]), (*two["span"], texts[0])],
                         "; ".join(texts), "; ".join(reversed(texts)))

    # ---- the walk ----

    def measure(self, node):
        for key in ("loc", "range"):
            if key in node:
                self.follow(node[key])
        node["file"] = self.file
        if "range" in node:
            node["span"] = self.span(node)
        for child in node.get("inner", []):
            self.measure(child)

    def visit(self, node, of=None):
        kind, inner = node.get("kind"), node.get("inner", [])
        if kind in ("CaseStmt", "DefaultStmt", "LabelStmt"):
            inner = inner[-1:]
            self.statement(inner[0])
        elif kind == "EnumDecl" or (kind == "VarDecl" and node.get("storageClass") == "static"):
            return
        elif kind == "UnaryExprOrTypeTraitExpr" or (kind and "span" in node and not node["span"]):
            return
        elif kind == "ImplicitCastExpr" and node.get("castKind") == "NullToPointer":
            return
        elif kind == "CompoundStmt":
            for child in inner:
                self.statement(child)
            self.pairs(inner)
        elif kind == "IfStmt":
            self.condition(inner[0])
            for child in inner[1:]:
                self.statement(child)
        elif kind == "ForStmt":
            if inner[2]:
                self.condition(inner[2])
            self.statement(inner[4])
        elif kind == "WhileStmt":
            self.condition(inner[0])
            self.statement(inner[1])
        elif kind == "DoStmt":
            self.condition(inner[1])
        elif kind == "ConditionalOperator":
            self.condition(inner[0])
        elif kind in ("BinaryOperator", "CompoundAssignOperator"):
            self.operator(node)
        elif kind == "UnaryOperator":
            self.unary(node)
        elif kind == "IntegerLiteral":
            self.literal(node, of)
        elif kind == "ReturnStmt":
            self.answer(node)
        for child in inner:
            self.visit(child, node)

    def cut(self, tree):
        self.measure(tree)
        for node in tree["inner"]:
            if (node["kind"] == "FunctionDecl" and node["file"].endswith("gpupool.h")
                    and node.get("inner") and node["inner"][-1]["kind"] == "CompoundStmt"
                    and not node["name"].startswith("gpi_names_")):
                self.function = node["name"]
                self.returns = node["type"]["qualType"].split("(")[0].strip()
                self.visit(node["inner"][-1])

    # ---- the header with all of them ----

    def render(self, begin, end, edits):
        """The text from begin to end; edits: those inside, by (begin, -end)."""
        out, at, i = [], begin, 0
        while i < len(edits):
            first, last = edits[i].begin, edits[i].end
            same = [e for e in edits[i:] if (e.begin, e.end) == (first, last)]
            inside = [e for e in edits[i:] if first <= e.begin and e.end <= last][len(same):]
            out.append(self.text[at:first])
            whole = self.render(first, last, inside)
            if (first, last) in self.leaps:
                out.append(f"if (MUTANT({same[0].number})) {{}} else {whole}")
            else:
                void = "(void)" if (first, last) in self.statements else ""
                truth = "!!" if (first, last) in self.truths else ""
                for e in same:
                    out.append(f"(MUTANT({e.number}) ? {void}({e.new}) : ")
                out.append(f"{void}{truth}({whole})" + ")" * len(same))
            at = last
            i += len(same) + len(inside)
        out.append(self.text[at:end])
        return "".join(out)

    def header(self, numbers):
        edits = sorted((e for e in self.edits if e.number in numbers),
                       key=lambda e: (e.begin, -e.end))
        return '#include "mutant.h"\n#line 1\n' + self.render(0, len(self.text), edits)

    def alone(self, number):
        """The header's text with one mutant instead of the code it is of."""
        text = self.text
        for e in sorted((e for e in self.edits if e.number == number), key=lambda e: -e.begin):
            lines = "\n" * text.count("\n", e.begin, e.end)
            text = text[:e.begin] + f"({e.new})" * bool(e.new) + lines + text[e.end:]
        return text


    # ---- what was cut, as a file ----

    def digest(self):
        """Of the header and of what cuts it."""
        return hashlib.sha1(self.bytes + pathlib.Path(__file__).read_bytes()).hexdigest()

    def save(self, kept):
        spans = [sorted(spans) for spans in (self.statements, self.leaps, self.truths)]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([self.digest(), self.mutants, self.edits, spans]))

    def load(self, kept):
        """Whether the file is there and of this header."""
        if not kept.exists():
            return False
        digest, mutants, edits, spans = json.loads(kept.read_text())
        self.mutants = [Mutant(*m) for m in mutants]
        self.edits = [Edit(*e) for e in edits]
        self.statements, self.leaps, self.truths = ({tuple(s) for s in each} for each in spans)
        return digest == self.digest()


def cut(path, unit, flags, kept):
    """unit: a file that includes the header with its implementation; kept: what was cut before."""
    cutter = Cutter(path)
    if cutter.load(kept):
        return cutter
    if not shutil.which("clang"):
        sys.exit(f"There is no clang here, and {kept} is not of this {path.name}: "
                 f"`make mutants N=0` where clang is writes it.")
    sys.setrecursionlimit(10000)
    told = subprocess.run(["clang", "-std=c11", "-fsyntax-only", "-w", "-Xclang", "-ast-dump=json",
                           *flags, unit], cwd=path.parent, stdout=subprocess.PIPE, check=True)
    cutter = Cutter(path)
    cutter.cut(json.loads(told.stdout))
    cutter.save(kept)
    return cutter
