# Draws README.md's table of reserved memory as an SVG picture: awk -f reserved.awk README.md
#
# It is the table whose first cell begins with "Reserved / live". Columns whose head ends with ", 4"
# are about four streams: they make the right half of the picture. A panel for each row, a bar for
# each column; all bars are on one scale, which begins at 0. The title counts in how many panels the
# first bar is the shortest.

BEGIN { FS = " *\\| *" }

function full(name) {
    if (name == "expandable") return "PyTorch expandable"
    return name == "Async" ? "cudaMallocAsync" : name
}

/^\| Reserved \/ live/ {
    for (i = 3; i < NF; i++) {
        half[i] = 1 + sub(/, 4$/, "", $i)
        column[half[i], ++columns[half[i]]] = full($i)
    }
    inside = 1
    next
}
inside && !/^\|/ { exit }
/^\|-/ { next }
inside {
    words[++rows] = $2
    seen[1] = seen[2] = 0
    for (i = 3; i < NF; i++) {
        v = $i
        gsub(/[*]/, "", v)
        value[half[i], rows, ++seen[half[i]]] = v
        if (v + 0 > most) most = v + 0
    }
}

function text(x, y, more, what) {
    printf "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, more, what
}

function panel(h, row, x, y,    i, end, top) {
    text(x, y, " font-weight=\"bold\"", words[row])
    top = y
    end = " text-anchor=\"end\""
    for (i = 1; i <= columns[h]; i++) {
        y += 16
        text(x + 118, y, end, column[h, i])
        printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"12\" fill=\"%s\"/>\n", x + 126,
            y - 10, value[h, row, i] * scale, i == 1 ? "#0072b2" : "#e69f00"
        text(x + 420, y, end, value[h, row, i])
    }
    # what is live is 1
    printf "<path d=\"M%.1f,%dv%d\" stroke=\"#000\" stroke-width=\"1.5\" " \
        "stroke-dasharray=\"3 2\"/>\n", x + 126 + scale, top + 3, y - top + 2
}

function is_least(h, row,    i) {
    for (i = 2; i <= columns[h]; i++)
        if (value[h, row, i] + 0 < value[h, row, 1] + 0) return 0
    return 1
}

function heading(    h, row, least) {
    for (h = 1; h <= 2; h++)
        for (row = 1; row <= rows; row++) least += is_least(h, row)
    return sprintf("gpupool reserves the least, or as little as the best, in %s%d cases",
                   least == 2 * rows ? "all " : least " of ", 2 * rows)
}

END {
    scale = 250 / (most ? most : 1) # pixels for what is live
    step = 16 * columns[1] + 34
    width = 2 * 450 + 12
    height = 96 + rows * step
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" " \
        "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n" \
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", width, height, width, height
    text(20, 26, " font-size=\"16\" font-weight=\"bold\"", heading())
    text(20, 46, " fill=\"#555\"",
         "Peak reserved memory / peak live memory: shorter is better. At the dashed line, 1.0, " \
         "all that is reserved is live.")
    text(20, 76, " font-size=\"14\"", "One stream")
    text(470, 76, " font-size=\"14\"", "Four streams")
    for (h = 1; h <= 2; h++)
        for (row = 1; row <= rows; row++)
            panel(h, row, 20 + (h - 1) * 450, 102 + (row - 1) * step)
    print "</svg>"
}
