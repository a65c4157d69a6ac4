# Lines of bench-run, of all allocators, as one table, with a verdict on each row: the time of the
# last pass (the worst call, where that is what a row measures) is at most twice that of the best
# peer; where a row's bar is named below, so many times that peer's. Exit status 1: gpupool misses
# it in some row.
#   awk -f judge.awk [-v tsv=FILE] LINES...
BEGIN {
    FS = OFS = "\t"
    ours = "gpupool"
    named["pair"] = "mimalloc"; times["pair"] = 2.5
    named["churn-16k"] = "mimalloc"; times["churn-16k"] = 2
    named["hand-over"] = "record + wait"; times["hand-over"] = 1.3
    no_rival["mimalloc"] = no_rival["glibc"] = no_rival["record + wait"] # none has device memory
}
/^# on: / { if (!machine++) print substr($0, 3); next }
/^#/ { print substr($0, 3); next }
{ if (tsv) print > tsv }
{
    if (!($1 in words)) { words[$1] = $3; row[++rows] = $1 }
    if ($2 != "clock" && !($2 in known)) { known[$2] = 1; column[++columns] = $2 }
}
$4 == "-" { why[$1, $2] = $5; next }
{
    unit[$1] = $4
    key = $1 SUBSEP $2
    first[key] = $5; last[key] = $6; least[key] = $7; most[key] = $8
    reserved[key] = $9; live[key] = $10; calls[key] = $12; failures[key] = $13
    cut[key] = $14; rounds[key] = $15; there[key] = 1
    if ($2 != "clock" && $6 > 0 && $8 > $7) spread[++spreads] = ($8 - $7) / $6
}

function number(value) { # 1,234 or 12.3
    return value < 9.95 ? sprintf("%.1f", value) : grouped(sprintf("%.0f", value))
}

function grouped(digits,    out) {
    while (length(digits) > 3) {
        out = "," substr(digits, length(digits) - 2) out
        digits = substr(digits, 1, length(digits) - 3)
    }
    return digits out
}

function cell(key,    text) {
    if (!(key in there)) return "-"
    if (last[key] == first[key] && calls[key] < 0) return number(last[key])
    text = number(first[key]) " " number(last[key]) (cut[key] ? "*" : "")
    if (reserved[key] > 0 && live[key] > 0) text = text sprintf(" %.2fx", reserved[key] / live[key])
    if (calls[key] >= 0) text = text sprintf(" %.2gc", calls[key])
    if (failures[key] > 0) text = text " " failures[key] "!"
    return text
}

function is_rival(work, who) {
    if (who == ours || !((work, who) in there)) return 0
    return work in named ? who == named[work] : !(who in no_rival)
}

# The best peer that refused no more than gpupool; sets best and its name.
function find_best(work,    i, key) {
    best = -1
    for (i = 1; i <= columns; i++) {
        key = work SUBSEP column[i]
        if (!is_rival(work, column[i]) || failures[key] > failures[work, ours]) continue
        if (best < 0 || last[key] < best) { best = last[key]; best_name = column[i] }
    }
    return best >= 0
}

# Refusing twice as often as some peer is no way to be quick.
function refuses(work,    i) {
    for (i = 1; i <= columns; i++)
        if (is_rival(work, column[i]) &&
            failures[work, ours] > 2 * failures[work, column[i]] + 10) return 1
    return 0
}

function judge(work,    key, bar, clock, text) {
    key = work SUBSEP ours
    if (!(key in there)) return "not measured (" why[key] ")"
    if (refuses(work)) { missed++; return "MISSED, it refuses more" }
    if (!find_best(work)) return "no peer"
    clock = unit[work] == "us" ? last[work, "clock"] : 0
    bar = (work in named ? times[work] : 2) * (best > clock ? best : clock)
    text = sprintf("%.2f of %s", last[key] / (best > 0 ? best : 1), best_name)
    if (last[key] <= bar) { met++; return "met, " text }
    missed++
    if (least[key] <= bar) text = text " (within the spread)"
    return "MISSED, " text
}

function median(    i, j, swap) {
    for (i = 2; i <= spreads; i++)
        for (j = i; j > 1 && spread[j - 1] > spread[j]; j--) {
            swap = spread[j]; spread[j] = spread[j - 1]; spread[j - 1] = swap
        }
    return spread[int((spreads + 1) / 2)]
}

END {
    print ""
    print "First and last passes, ns a call (us: the worst call); x: reserved / live; c: CUDA calls"
    print "a call in the last pass; !: requests that were refused; *: a pass was cut."
    print ""
    printf "%-38s", ""
    for (i = 1; i <= columns; i++) printf " %-30s", column[i]
    print ""
    for (r = 1; r <= rows; r++) {
        printf "%-38s", words[row[r]] (unit[row[r]] == "us" ? ", us" : "")
        for (i = 1; i <= columns; i++) printf " %-30s", cell(row[r] SUBSEP column[i])
        print ""
    }
    print ""
    print "At most twice the best peer, or the row's own bar:"
    for (r = 1; r <= rows; r++)
        if (known[ours]) printf "%-38s %s: %s\n", words[row[r]], ours, judge(row[r])
    print ""
    for (r = 1; r <= rows; r++)
        for (i = 1; i <= columns; i++) {
            key = row[r] SUBSEP column[i]
            if (rounds[key]) print column[i] ": " rounds[key] " rounds of GPT-2 came before"
            else if ((key in why) && !told[column[i], why[key]]++)
                print "left out: " column[i] ", " words[row[r]] ": " why[key]
        }
    if (spreads)
        printf "spread of the last passes: median %.0f%%, most %.0f%%\n", 100 * median(),
               100 * spread[spreads]
    printf "%s: %d met, %d missed\n", ours, met, missed
    exit missed ? 1 : 0
}
