# Draws README.md's table of reserved memory as an SVG picture: awk -f reserved.awk README.md
#
# A panel for each row of the table whose first row says "peak live", a bar for each column: the
# number in **...**. All bars are on one scale, which begins at 0.

BEGIN { FS = " *\\| *" }
/^\| .*peak live/ {
    for (i = 3; i < NF; i++) column[++columns] = $i
    next
}
columns && !/^\|/ { exit }
columns && /[*][*]/ {
    words[++rows] = $2
    for (i = 1; i <= columns; i++) {
        split($(i + 2), part, /[*][*]/)
        value[rows, i] = part[2]
    }
}

function text(x, y, more, what) {
    printf "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, more, what
}

function panel(row, x, y,    i, end) {
    text(x, y, " font-weight=\"bold\"", words[row])
    for (i = 1; i <= columns; i++) {
        y += 18
        end = " text-anchor=\"end\""
        text(x + 118, y, end, column[i])
        printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"13\" fill=\"%s\"/>\n", x + 126,
            y - 11, value[row, i] * scale, i == 1 ? "#0072b2" : "#e69f00"
        text(x + 420, y, end, value[row, i])
    }
    # what is live is 1
    printf "<path d=\"M%.1f,%dv%d\" stroke=\"#000\" stroke-width=\"1.5\" " \
        "stroke-dasharray=\"3 2\"/>\n", x + 126 + scale, y - 18 * columns + 3, 18 * columns + 4
}

END {
    scale = 140 # pixels for what is live
    width = 2 * 450 + 12
    height = 76 + int((rows + 1) / 2) * (18 * columns + 36)
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" " \
        "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n" \
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", width, height, width, height
    text(20, 26, " font-size=\"15\"", "Peak reserved memory / peak live memory")
    text(20, 46, " fill=\"#555\"",
         "Shorter is better. At the dashed line all that is reserved is live.")
    for (i = 1; i <= rows; i++)
        panel(i, 20 + (i - 1) % 2 * 450, 80 + int((i - 1) / 2) * (18 * columns + 36))
    print "</svg>"
}
