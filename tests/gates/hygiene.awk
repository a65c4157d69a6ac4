# The rules of gpupool.h, what it may cost its reader among them: awk -f hygiene.awk gpupool.h. A
# broken rule is a line of output, and fails; the last line has the figures.

BEGIN {
    # What the header promises, and may not exceed. Code is without blanks and comments.
    code_most = 5500; tokens_most = 50000; lines_most = 8000
    core_most = 4200 # code, in all sections but those of what few programs use:
    split("SLEEP SHARE RING FILE", words, " ")
    for (i in words) is_extra[words[i]] = 1
    section_most = 600; function_most = 50; parameters_most = 5; columns_most = 100
    token = "[A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z_.]*|[.][.][.]|" \
            "\"(\\\\.|[^\"\\\\])*\"|'(\\\\.|[^'\\\\])*'|" \
            "<<=|>>=|->|[+][+]|--|<<|>>|&&|[|][|]|##|[-+*/%&|^<>=!]=|[^ \t]"
    history = "TODO|FIXME|XXX|HACK|previously|formerly|was changed|has been changed|old version|" \
              "new version|bug ?fix|refactor|rewritten|renamed from|we now|deprecated|obsolete"
}

function say(words) {
    printf "%s:%d: %s\n", FILENAME, FNR, words
    broken++
}
function over(what, is, most) { if (is > most) say(what ": " is ", at most " most) }

# The line without comments; `bare` has its strings emptied, too; `comment` is what was cut, and may
# go on in the next line.
function code_of(line,    code, part, at) {
    code = bare = comment = ""
    while (line != "") {
        if (in_comment) {
            at = index(line, "*/")
            comment = comment (at ? substr(line, 1, at - 1) : line)
            line = at ? substr(line, at + 2) : ""
            in_comment = !at
        } else if (match(line, /\/\*|\/\/|"(\\.|[^"\\])*"|'(\\.|[^'\\])*'/)) {
            part = substr(line, RSTART, RLENGTH)
            code = code substr(line, 1, RSTART - 1)
            bare = bare substr(line, 1, RSTART - 1)
            line = part == "//" ? "" : substr(line, RSTART + RLENGTH)
            in_comment = part == "/*"
            if (part ~ /^["']/) { code = code part; bare = bare "0" }
        } else {
            code = code line
            bare = bare line
            line = ""
        }
    }
    return code
}

function tokens_of(code,    count) {
    while (match(code, token)) {
        count++
        code = substr(code, RSTART + RLENGTH)
    }
    return count + 0
}

# Statements of a line: what ends outside of parentheses, which may have begun lines before.
# `do x; while (y);` is one.
function statements_of(bare,    line) {
    line = unclosed bare
    while (sub(/\([^()]*\)/, "", line)) continue
    unclosed = line ~ /\(/ ? line : ""
    if (unclosed || line ~ /^[ ]*do .*while;[ ]*$/) return 1
    return gsub(/;/, ";", line)
}

# Parameters of the function whose head, as far as its brace, this is; the dots are none.
function parameters_of(head,    at, depth, character, count) {
    sub(/\)[ ]*\{.*$/, "", head)
    for (at = length(head); at > 0 && depth >= 0; at--) {
        character = substr(head, at, 1)
        if (character == ")") depth++
        if (character == "(") depth--
        if (character == "," && depth == 0) count++
    }
    head = substr(head, at + 2)
    if (head ~ /^[ ]*(void)?[ ]*$/) return 0
    return count + 1 - (head ~ /\.\.\.[ ]*$/)
}

{
    code = code_of($0)
    if (code !~ /^[ \t]*$/) {
        all_code++
        section_code++
        core_code += !(promised[section] in is_extra)
        tokens += tokens_of(code)
    }
    over("columns", length($0), columns_most)
}
comment ~ history && match(comment, history) {
    say("a comment tells history: " substr(comment, RSTART, RLENGTH))
}

# ---- the contents list, and the sections that it promises ----
function end_section() { over("lines of code in " promised[section], section_code, section_most) }
/^Contents / { in_contents = 1; next }
in_contents && $1 !~ /^[A-Z]+$/ { in_contents = 0 }
in_contents {
    for (i = 1; i <= NF && $i ~ /^[A-Z]+$/; i++) {
        promised[++sections] = $i
        number[tolower($i)] = sections
    }
}
/^\/\* == [A-Z]+ =+/ {
    end_section()
    section_code = 0
    section++
    if ($3 != promised[section]) say("section " $3 " where the contents have " promised[section])
}

# ---- functions: a head begins in the first column and ends with a brace; the function ends with
# one in the first ----
code ~ /^[A-Za-z_]/ && !in_function { start = FNR; head = "" }
start && !in_function {
    head = head bare " "
    if (head ~ /;[ ]*$/ || head ~ /=[ ]*\{/) start = 0
    else if (head ~ /\)[ ]*\{/ && head !~ /^(typedef|struct|enum|union)/) {
        in_function = 1
        functions++
        over("parameters", parameters_of(head), parameters_most)
    } else if (head ~ /\{[ ]*$/) start = 0
}
in_function && code !~ /^#/ && statements_of(bare) > 1 { say("two statements") }
in_function && (/^}/ || (start == FNR && bare ~ /\}[ ]*$/)) {
    over("lines of a function", FNR - start + 1, function_most)
    in_function = start = 0
}

# ---- they stand in their section, and are declared before it only where the line says whose they
# are: the compiler then sees to it that sections use only those above ----
/^#if defined\(GPUPOOL_IMPLEMENTATION\)/ { implementation = 1 }
/^#endif \/\* GPUPOOL_IMPLEMENTATION/ { implementation = 0 }
implementation && /^static / && /gpi_[a-z]+_[a-z_0-9]*\(/ {
    match(code, /gpi_[a-z]+_[a-z_0-9]*\(/)
    split(substr(code, RSTART), part, "_")
    is_declared = code ~ /;[ ]*$/
    if (is_declared) {
        declared[part[2]] = FNR
    } else if (part[2] in number && number[part[2]] != section) {
        say("a function of " toupper(part[2]) " in " promised[section])
    }
}
implementation && comment ~ / (both: )?[A-Z]+ $/ {
    for (name in declared) if (comment ~ " " toupper(name) " $") delete declared[name]
}
implementation && /^\/\* == / {
    for (name in declared) say("declared before it is defined: a function of " toupper(name))
    delete declared
}

END {
    end_section()
    over("lines of code", all_code, code_most)
    over("lines of code in the core", core_code, core_most)
    over("tokens", tokens, tokens_most)
    over("lines", FNR, lines_most)
    if (section != sections) say("the contents have " sections " sections, the file " section + 0)
    printf "%d lines, %d of code (%d in the core), %d tokens, %d functions\n", FNR, all_code,
        core_code, tokens, functions
    exit broken > 0
}
