# The rules of gpupool.h's text: awk -f hygiene.awk gpupool.h. A broken rule is a line of output.

BEGIN {
    function_lines = 60
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

# ---- the contents list, and the banners it promises ----
/^Contents / { in_contents = 1; next }
in_contents && NF == 0 { in_contents = 0 }
in_contents {
    for (i = 1; i <= NF && $i ~ /^[A-Z]+$/; i++) {
        promised[++rooms] = $i
        number[tolower($i)] = rooms
    }
}
/^\/\* == [A-Z]+ =+/ {
    room++
    if ($3 != promised[room]) say("room " $3 " where the contents have " promised[room])
}

{ code = code_of($0) }

comment ~ history && match(comment, history) {
    say("a comment tells history: " substr(comment, RSTART, RLENGTH))
}

/^#if defined\(GPUPOOL_IMPLEMENTATION\)/ { implementation = 1 }
/^#endif \/\* GPUPOOL_IMPLEMENTATION/ { implementation = 0 }

# ---- macros of the implementation ----
implementation && /^#define GPI_/ { split($2, part, "("); defined[part[1]] = FNR }
implementation && /^#undef GPI_/ {
    if (!($2 in defined)) say($2 " was never defined")
    undefined[$2] = 1
}

# ---- rooms use rooms above ----
implementation {
    rest = code
    while (match(rest, /(gpi|GPI)_[A-Za-z]+/)) {
        name_room = tolower(substr(rest, RSTART + 4, RLENGTH - 4))
        rest = substr(rest, RSTART + RLENGTH)
        if (number[name_room] > room && name_room != "names")
            say("a name of " toupper(name_room) " in " promised[room])
    }
}

# ---- functions, and no declaration before its definition ----
implementation && /^[A-Za-z]/ && !in_function { start = FNR; head = "" }
implementation && start { head = head code " " }
implementation && start && !in_function && code ~ /;[ ]*$/ {
    if (head ~ /^[^={]*\)[ ]*;[ ]*$/ && head !~ /^typedef/) say("declared before it is defined")
    if (head ~ /^(typedef )?(struct|enum|union) [a-z_]+( [a-z_]+)?;/) say("a type without a body")
    start = 0
}
implementation && start && !in_function && head ~ /\)[ ]*\{/ && head !~ /^typedef/ {
    in_function = 1
    if (match(head, /gpi_[a-z]+_[a-z_0-9]+\(/)) {
        split(substr(head, RSTART), part, "_")
        if (number[part[2]] && number[part[2]] != room)
            say("a function of " toupper(part[2]) " in " promised[room])
    }
}
in_function && (/^}/ || (start == FNR && code ~ /}[ ]*$/)) {
    if (FNR - start + 1 > function_lines) say("a function of " FNR - start + 1 " lines")
    functions++
    in_function = start = 0
}

END {
    if (room != rooms) say("the contents have " rooms " rooms, the file " room + 0)
    for (name in defined) if (!(name in undefined)) say(name " is defined and left")
    if (functions < 100) say("only " functions + 0 " functions were seen")
}
