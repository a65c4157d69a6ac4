# The figures of gpupool and of others as a table in Markdown:
# awk -f table.awk -v traces="NAME..." MAPPED DEVICE PEERS
#
# A line is TRACE FIGURE VALUE, and of PEERS, TRACE FIGURE NATIVE EXPANDABLE ASYNC; - is unknown.

FNR == 1 { file++ }
/^#/ { next }
{ for (i = 3; i <= NF; i++) value[$1, $2, file + i - 3] = $i }

function cell(trace, figure, column, digits,    v) {
    v = value[trace, figure, column]
    return v == "" || v == "-" ? "–" : sprintf("%." digits "f", v)
}

function row(trace, figure, words, digits,    column, line) {
    line = "| " words " |"
    for (column = 1; column <= 5; column++)
        line = line " " cell(trace, figure, column, digits) " |"
    print line
}

# Of the columns that have all traces.
function mean(figure, words,    column, t, v, sum) {
    for (column = 1; column <= 5; column++) {
        sum = 0
        for (t = 1; t <= traces_n && sum != "-"; t++) {
            v = value[name[t], figure, column]
            sum = v == "" || v == "-" ? "-" : sum + log(v)
        }
        value["mean", figure, column] = sum == "-" ? "-" : exp(sum / traces_n)
    }
    row("mean", figure, words, 3)
}

END {
    traces_n = split(traces, name, " ")
    print "| | gpupool, mapped | gpupool, device | PyTorch native | PyTorch expandable |" \
          " cudaMallocAsync |"
    print "|---|---|---|---|---|---|"
    for (t = 1; t <= traces_n; t++) {
        gb = sprintf("%.2f GB live", value[name[t], "live", 1] / 1e9)
        row(name[t], "reserved", name[t] " (" gb "): reserved / live", 3)
        row(name[t], "least", "least budget / live", 3)
        row(name[t], "cold", "ns an operation, cold", 0)
        row(name[t], "warm", "ns, warm", 0)
        row(name[t], "squeezed-cold", "ns at 1.02 × the least budget, cold", 0)
        row(name[t], "squeezed-warm", "the same, warm", 0)
    }
    mean("reserved", "geometric mean: reserved / live")
    mean("least", "geometric mean: least budget / live")
}
