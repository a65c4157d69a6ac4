# What gpupool.h may cost its reader: awk -f budget.awk gpupool.h. Prints a table of lines of code
# (without blanks and comments) and tokens by section, then each excess, by name. Fails if there is
# one. QUIET=1 leaves the table out.

BEGIN {
    # What the header promises, and may not exceed.
    code_most = 5500; tokens_most = 50000; lines_most = 8000 # of the header
    core_code_most = 4200; core_tokens_most = 39000          # of the core and the surface
    section_most = 600; function_most = 50; parameters_most = 5; columns_most = 100
    # A group's lines are a plan, no bound: what one takes more another must take less.
    group("public", 430, "OPTIONS WORDS API NAMES CPP")
    group("system", 480, "SYSTEM DRIVER TEXT")
    group("memory", 820, "COUNTERS BUDDY STREAM")
    group("growth", 780, "CHUNK STITCH LADDER")
    group("blocks", 820, "ALLOC CAPTURE VERDICT SIBLING")
    group("arenas", 520, "LIFE FIGURES SHAPE")
    group("reports", 350, "REPORT CHECK")
    group("sharing", 370, "SLEEP SHARE")
    group("ring", 600, "RING FILE")
    split("SLEEP SHARE RING FILE", words, " ")
    for (i in words) is_extra[words[i]] = 1
    section = "TOP" # what is before the first section
    group_of["TOP"] = 1
    token = "[A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z_.]*|[.][.][.]|" \
            "\"(\\\\.|[^\"\\\\])*\"|'(\\\\.|[^'\\\\])*'|" \
            "<<=|>>=|->|[+][+]|--|<<|>>|&&|[|][|]|##|[-+*/%&|^<>=!]=|[^ \t]"
}

function group(name, lines, sections,    list, i) {
    names[++groups] = name
    planned[groups] = lines
    for (i = split(sections, list, " "); i > 0; i--) group_of[list[i]] = groups
}

function over(what, is, most) { if (is > most) excess(what ": " is ", at most " most) }
function excess(words) { excesses[++excess_count] = words }
function here(words) { return "line " FNR ": " words }

# The line without comments; `bare` has its strings emptied, too.
function code_of(line,    code, part) {
    code = bare = ""
    while (line != "") {
        if (in_comment) {
            in_comment = !match(line, /\*\//)
            line = in_comment ? "" : substr(line, RSTART + 2)
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

function name_of(head) {
    return match(head, /[A-Za-z_0-9]+[ ]*\([^()]*(\([^()]*\)[^()]*)*\)[ ]*\{/) ? \
        substr(head, RSTART, index(substr(head, RSTART), "(") - 1) : "a function"
}

/^\/\* == [A-Z]+ =+/ {
    section = $3
    order[++section_count] = section
    if (!(section in group_of)) excess(section ": a section of no group")
}

{
    text = code_of($0)
    if (text !~ /^[ \t]*$/) {
        lines[section]++
        tokens[section] += tokens_of(text)
    }
    if (length($0) > columns_most) over(here("columns"), length($0), columns_most)
}

# A head begins in the first column and ends with a brace; the function ends with one in the first.
text ~ /^[A-Za-z_]/ && !in_function { start = FNR; head = "" }
start && !in_function {
    head = head bare " "
    if (head ~ /;[ ]*$/ || head ~ /=[ ]*\{/) start = 0
    else if (head ~ /\)[ ]*\{/ && head !~ /^(typedef|struct|enum|union)/) {
        in_function = 1
        functions++
        over(here(name_of(head) ": parameters"), parameters_of(head), parameters_most)
    } else if (head ~ /\{[ ]*$/) start = 0
}
in_function && text !~ /^#/ && statements_of(bare) > 1 { excess(here("two statements")) }
in_function && (/^}/ || (start == FNR && bare ~ /\}[ ]*$/)) {
    over("line " start ": " name_of(head) ": lines", FNR - start + 1, function_most)
    in_function = start = 0
}

END {
    for (i = 0; i <= section_count; i++) {
        section = i ? order[i] : "TOP"
        over(section ": lines of code", lines[section] + 0, section_most)
        all_code += lines[section]
        all_tokens += tokens[section]
        if (!(section in is_extra)) {
            core_code += lines[section]
            core_tokens += tokens[section]
        }
        of_group[group_of[section]] += lines[section]
        listed[group_of[section]] = listed[group_of[section]] \
            sprintf("    %-26s %6d %8d\n", section, lines[section], tokens[section])
    }
    over("the core: lines of code", core_code, core_code_most)
    over("the core: tokens", core_tokens, core_tokens_most)
    over("the header: lines of code", all_code, code_most)
    over("the header: tokens", all_tokens, tokens_most)
    over("the header: lines", FNR, lines_most)
    if (!section_count) excess("no section was seen")
    if (!functions) excess("no function was seen")
    if (!QUIET) {
        printf "%-30s %6s %8s %8s\n", "group, section", "code", "tokens", "plan"
        for (g = 1; g <= groups; g++) if (listed[g])
            printf "%-30s %6d %8s %8d\n%s", names[g], of_group[g], "", planned[g], listed[g]
        printf "%-30s %6d %8d %8d\n", "the core", core_code, core_tokens, core_code_most
        printf "%-30s %6d %8d %8d\n", "the header", all_code, all_tokens, code_most
        printf "%d lines, %d functions\n", FNR, functions
    }
    for (i = 1; i <= excess_count; i++) print "EXCESS " excesses[i]
    exit excess_count > 0
}
