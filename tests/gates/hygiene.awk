# The rules of gpupool.h's text: awk -f hygiene.awk gpupool.h. A broken rule is a line of output.

BEGIN {
    history = "TODO|FIXME|XXX|HACK|previously|formerly|was changed|has been changed|old version|" \
              "new version|bug ?fix|refactor|rewritten|renamed from|we now|deprecated|obsolete"
}

function say(words) { printf "%s:%d: %s\n", FILENAME, FNR, words }

# The line without comments and strings; comment is what was cut, and may go on in the next line.
function code_of(line,    code, at) {
    code = comment = ""
    gsub(/\\./, "", line)
    while (line != "") {
        if (in_comment) {
            at = index(line, "*/")
            comment = comment (at ? substr(line, 1, at - 1) : line)
            line = at ? substr(line, at + 2) : ""
            in_comment = !at
        } else if (match(line, /\/\*|"[^"]*"|'[^']*'/)) {
            code = code substr(line, 1, RSTART - 1)
            in_comment = substr(line, RSTART, 2) == "/*"
            line = substr(line, RSTART + RLENGTH)
        } else {
            code = code line
            line = ""
        }
    }
    return code
}

# ---- the contents list, and the sections that it promises ----
/^Contents / { in_contents = 1; next }
in_contents && $1 !~ /^[A-Z]+$/ { in_contents = 0 }
in_contents {
    for (i = 1; i <= NF && $i ~ /^[A-Z]+$/; i++) {
        promised[++sections] = $i
        number[tolower($i)] = sections
    }
}
/^\/\* == [A-Z]+ =+/ {
    section++
    if ($3 != promised[section]) say("section " $3 " where the contents have " promised[section])
}

{ code = code_of($0) }

comment ~ history && match(comment, history) {
    say("a comment tells history: " substr(comment, RSTART, RLENGTH))
}

/^#if defined\(GPUPOOL_IMPLEMENTATION\)/ { implementation = 1 }
/^#endif \/\* GPUPOOL_IMPLEMENTATION/ { implementation = 0 }

# ---- functions stand in their section, and are declared before it only where the line says whose
# they are: the compiler then sees to it that sections use only those above ----
implementation && /^static / && /gpi_[a-z]+_[a-z_0-9]*\(/ {
    match(code, /gpi_[a-z]+_[a-z_0-9]*\(/)
    split(substr(code, RSTART), part, "_")
    is_declared = code ~ /;[ ]*$/
    if (is_declared) {
        declared[part[2]] = FNR
    } else if (part[2] in number && number[part[2]] != section) {
        say("a function of " toupper(part[2]) " in " promised[section])
    }
    functions++
}
implementation && comment ~ / (both: )?[A-Z]+ $/ {
    for (name in declared) if (comment ~ " " toupper(name) " $") delete declared[name]
}
implementation && /^\/\* == / {
    for (name in declared) say("declared before it is defined: a function of " toupper(name))
    delete declared
}

END {
    if (section != sections) say("the contents have " sections " sections, the file " section + 0)
    if (functions < 100) say("only " functions + 0 " functions were seen")
}
