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
function mean(figure, words,    column, t, v, sum, logs) {
    for (column = 1; column <= 5; column++) {
        sum = logs = 0
        for (t = 1; t <= traces_n && sum != "-"; t++) {
            v = value[name[t], figure, column]
            if (v == "" || v == "-") {
                sum = "-"
            } else {
                sum += v
                logs += log(v)
            }
        }
        value["mean", figure, column] = sum == "-" ? "-" : sum / traces_n
        value["geometric", figure, column] = sum == "-" ? "-" : exp(logs / traces_n)
    }
    row("mean", figure, "mean: " words, 3)
    row("geometric", figure, "geometric mean: " words, 3)
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
        row(name[t], "reserved-20", "after twenty passes: reserved / live", 3)
        row(name[t], "least-20", "least budget of twenty passes / live", 3)
        row(name[t], "calls-1", "CUDA calls in the first pass", 0)
        row(name[t], "calls-3", "in the third", 0)
        row(name[t], "calls-5", "in the fifth", 0)
        row(name[t], "cold", "ns an operation, cold", 0)
        row(name[t], "warm", "ns, warm", 0)
        row(name[t], "squeezed-cold", "ns at 1.02 × the least budget, cold", 0)
        row(name[t], "squeezed-warm", "the same, warm", 0)
        row(name[t], "streams-reserved", "four streams: reserved / live", 3)
        row(name[t], "streams-warm", "four streams: ns, warm", 0)
    }
    mean("reserved", "reserved / live")
    mean("least", "least budget / live")
    mean("reserved-20", "after twenty passes: reserved / live")
    mean("least-20", "least budget of twenty passes / live")
}
