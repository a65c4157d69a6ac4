# Lines of bench-run's plan "memory", of all allocators, as README.md's two tables: what each
# reserves beside what is live, on one stream and on four, and the times of the replays.
#   awk -f memory.awk [-v tsv=FILE] LINES...
BEGIN {
    FS = OFS = "\t"
    peers = split("gpupool torch-native torch-expandable cudaMallocAsync", peer, " ")
    split("gpupool PyTorch expandable Async", short, " ")
}
/^# on: / { if (!machine++) print substr($0, 3); next }
/^#/ { print substr($0, 3); next }
{ if (tsv) print > tsv }
$4 == "-" { print "left out: " $2 ", " $3 ": " $5; next }
{
    trace = $1
    streams = sub(/-4$/, "", trace) ? 4 : 1
    if (!(trace in words)) { words[trace] = $3; row[++rows] = trace }
    if ($10 > live[trace]) live[trace] = $10
    ratio[trace, streams, $2] = sprintf("%.3f", $9 / $10) ($13 > 0 ? " !" : "")
    first[streams, $2] += $5
    last[streams, $2] += $6
    n[streams, $2]++
}

# Cells of one figure, the least of them bold; value is by peer.
function cells(value,    i, least, line) {
    for (i = 1; i <= peers; i++)
        if (value[i] != "" && (least == "" || value[i] + 0 < least)) least = value[i] + 0
    for (i = 1; i <= peers; i++) {
        if (value[i] == "") line = line " – |"
        else line = line (value[i] + 0 == least ? " **" value[i] "** |" : " " value[i] " |")
    }
    return line
}

function reserved(trace, streams,    i, value) {
    for (i = 1; i <= peers; i++) value[i] = ratio[trace, streams, peer[i]]
    return cells(value)
}

# Only of those that have all runs.
function mean(sum, streams,    i, value) {
    for (i = 1; i <= peers; i++)
        value[i] = n[streams, peer[i]] == rows ? sprintf("%.0f", sum[streams, peer[i]] / rows) : ""
    return cells(value)
}

END {
    print ""
    for (i = 1; i <= peers; i++) head = head " " short[i] " |"
    spread = head
    gsub(/ \|/, ", 4 |", spread)
    print "| Reserved / live, peaks, `make bench-memory` |" head spread
    print "|---|---|---|---|---|---|---|---|---|"
    for (r = 1; r <= rows; r++)
        printf "| %s: %.2f GB |%s%s\n", words[row[r]], live[row[r]] / 1e9, reserved(row[r], 1),
            reserved(row[r], 4)
    print ""
    print "| `make bench-memory`, ns a call, mean of the runs |" head
    print "|---|---|---|---|---|"
    print "| first replay, one stream |" mean(first, 1)
    print "| third replay, one stream |" mean(last, 1)
    print "| third replay, four streams |" mean(last, 4)
    print ""
}
